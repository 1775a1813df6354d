//! One hyper-parameter: its name for messages, its value checked as it is read.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::FamilyError;
use crate::source::MAX_LAYERS;

/// Largest size of one dimension: far above any model, far below what would hurt to allocate.
const MAX_SIZE: usize = 1 << 20;

/// A hyper-parameter with its name, for messages.
#[derive(Clone)]
pub(crate) struct Field<'a> {
    pub(crate) key: String,
    pub(crate) value: Cow<'a, Value>,
}

impl<'a> Field<'a> {
    pub fn unexpected(&self, expected: impl Into<String>) -> FamilyError {
        FamilyError::Unexpected {
            key: self.key.clone(),
            found: short(&self.value),
            expected: expected.into(),
        }
    }

    pub fn size(&self) -> Result<usize, FamilyError> {
        self.integer(1, MAX_SIZE)
    }

    /// A whole number of that range, also where it is written as 8.0 or, for all layers alike, as a list of 8s.
    pub fn integer(&self, least: usize, most: usize) -> Result<usize, FamilyError> {
        let value = match self.value.as_array().map(Vec::as_slice) {
            Some([first, rest @ ..]) if rest.iter().all(|other| other == first) => first,
            _ => &self.value,
        };
        let whole = |x: f64| (x.fract() == 0.0 && x >= 0.0 && x <= most as f64).then_some(x as u64);
        let found = value.as_u64().or_else(|| value.as_f64().and_then(whole));
        found
            .and_then(|x| usize::try_from(x).ok())
            .filter(|x| (least..=most).contains(x))
            .ok_or_else(|| self.unexpected(format!("an integer from {least} to {most}")))
    }

    pub fn positive(&self) -> Result<f64, FamilyError> {
        let found = self.value.as_f64().filter(|x| x.is_finite() && *x > 0.0);
        found.ok_or_else(|| self.unexpected("a positive number"))
    }

    /// A positive number that f32 can hold.
    pub fn single(&self) -> Result<f32, FamilyError> {
        let single = self.positive()? as f32;
        if single.is_normal() { Ok(single) } else { Err(self.unexpected("a positive number within f32")) }
    }

    pub fn flag(&self) -> Result<bool, FamilyError> {
        let number = || self.value.as_u64().filter(|x| *x <= 1).map(|x| x == 1);
        self.value.as_bool().or_else(number).ok_or_else(|| self.unexpected("true or false"))
    }

    pub fn text(&self) -> Result<&str, FamilyError> {
        self.value.as_str().ok_or_else(|| self.unexpected("text"))
    }

    pub fn is_list(&self) -> bool {
        self.value.is_array()
    }

    /// The elements of a list of exactly `count`.
    pub fn list(&self, count: usize) -> Result<Vec<Field<'_>>, FamilyError> {
        let items = self.value.as_array().filter(|items| items.len() == count);
        let items = items.ok_or_else(|| self.unexpected(format!("a list of {count}, one for each layer")))?;
        Ok(self.numbered(items))
    }

    /// The elements of a list.
    pub fn items(&self) -> Result<Vec<Field<'_>>, FamilyError> {
        let items = self.value.as_array().filter(|items| items.len() <= MAX_LAYERS);
        Ok(self.numbered(items.ok_or_else(|| self.unexpected("a list"))?))
    }

    /// A size for each layer, or one for all of them.
    pub fn sizes(&self, layers: usize) -> Result<Vec<usize>, FamilyError> {
        match self.is_list() {
            true => self.list(layers)?.iter().map(Field::size).collect(),
            false => Ok(vec![self.size()?; layers]),
        }
    }

    fn numbered<'b>(&self, items: &'b [Value]) -> Vec<Field<'b>> {
        let name = |(i, value)| Field { key: format!("{}[{i}]", self.key), value: Cow::Borrowed(value) };
        items.iter().enumerate().map(name).collect()
    }

    /// A member of an object, if it is there and not null.
    pub fn member(&self, name: &str) -> Result<Option<Field<'_>>, FamilyError> {
        spelled(self.members()?, &format!("{}.", self.key), name)
    }

    pub fn required(&self, name: &str) -> Result<Field<'_>, FamilyError> {
        let missing = || FamilyError::Missing { key: format!("{}.{name}", self.key) };
        self.member(name)?.ok_or_else(missing)
    }

    pub fn members(&self) -> Result<&Map<String, Value>, FamilyError> {
        self.value.as_object().ok_or_else(|| self.unexpected("an object"))
    }
}

/// The value of a key under any of its spellings; those that are there must agree.
pub(crate) fn spelled<'a>(
    map: &'a Map<String, Value>,
    place: &str,
    names: &str,
) -> Result<Option<Field<'a>>, FamilyError> {
    let mut found: Option<Field<'a>> = None;
    for name in names.split('|') {
        let Some(value) = map.get(name).filter(|value| !value.is_null()) else { continue };
        let field = Field { key: format!("{place}{name}"), value: Cow::Borrowed(value) };
        match &found {
            None => found = Some(field),
            Some(first) if first.value == field.value => {}
            Some(first) => {
                return Err(FamilyError::Contradiction {
                    first_value: short(&first.value),
                    first: first.key.clone(),
                    second_value: short(&field.value),
                    second: field.key,
                });
            }
        }
    }
    Ok(found)
}

/// A value as text of bounded length.
pub(crate) fn short(value: &Value) -> String {
    let mut text = value.to_string();
    if text.chars().count() > 60 {
        text = text.chars().take(57).chain("...".chars()).collect();
    }
    text
}
