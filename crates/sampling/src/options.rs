//! How a token is chosen.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::SamplingError;

/// All options of a [`Sampler`](crate::Sampler). `default()` is what llama.cpp does unless told otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingOptions {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Keeps the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the most likely tokens that together reach this probability; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this many times as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Keeps the tokens whose surprise is nearest to the expected one, up to this probability; 1 keeps all.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every recent token; 0 does nothing.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a recent token for every time it occurred; 0 does nothing.
    pub frequency_penalty: f32,
    /// How many of the last tokens, the prompt's included, the penalties look at; `None` is all of them.
    pub penalty_last_n: Option<usize>,
    /// Added to the logits of single tokens; minus infinity (or null in JSON) bans one.
    #[serde(with = "bias")]
    pub logit_bias: BTreeMap<u32, f32>,
    /// Makes draws repeatable.
    pub seed: u64,
    /// How many of the most likely tokens to report with their log-probabilities.
    pub logprobs: usize,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        SamplingOptions { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Self::neutral() }
    }
}

impl SamplingOptions {
    /// The model's own distribution, nothing cut away.
    pub fn neutral() -> Self {
        SamplingOptions {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: Some(64),
            logit_bias: BTreeMap::new(),
            seed: 0,
            logprobs: 0,
        }
    }

    /// Always the most likely token.
    pub fn greedy() -> Self {
        SamplingOptions { temperature: 0.0, ..Self::neutral() }
    }

    /// What a checkpoint's generation_config.json asks for.
    ///
    /// `do_sample: false` is greedy. A file that names a sampling option starts from [`SamplingOptions::neutral`], one
    /// that names none from `default()`.
    ///
    /// # Errors
    /// A value that is not a number or makes no sense.
    pub fn from_generation_config(config: &Value) -> Result<Self, SamplingError> {
        const KEYS: [&str; 6] = ["temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty"];
        if config.get("do_sample").and_then(Value::as_bool) == Some(false) {
            return Ok(Self::greedy());
        }
        let present = |key: &str| config.get(key).filter(|v| !v.is_null());
        if !KEYS.iter().any(|key| present(key).is_some()) {
            return Ok(Self::default());
        }
        let mut options = Self::neutral();
        let number = |key: &'static str, default: f32| match present(key) {
            None => Ok(default),
            Some(value) => value.as_f64().map(|x| x as f32).ok_or_else(|| SamplingError::Option {
                option: key,
                value: value.to_string(),
                expected: "a number",
            }),
        };
        options.temperature = number("temperature", options.temperature)?;
        options.top_p = number("top_p", options.top_p)?;
        options.min_p = number("min_p", options.min_p)?;
        options.typical_p = number("typical_p", options.typical_p)?;
        options.repetition_penalty = number("repetition_penalty", options.repetition_penalty)?;
        // -1 and 0 both keep all.
        options.top_k = number("top_k", 0.0)?.max(0.0) as usize;
        if options.repetition_penalty != 1.0 {
            // transformers penalises everything so far.
            options.penalty_last_n = None;
        }
        options.check()?;
        Ok(options)
    }

    /// Whether every option has a value that makes sense.
    ///
    /// # Errors
    /// The first one that has not, by name.
    pub fn check(&self) -> Result<(), SamplingError> {
        let need = |ok: bool, option: &'static str, value: f32, expected: &'static str| {
            if ok {
                Ok(())
            } else {
                Err(SamplingError::Option { option, value: value.to_string(), expected })
            }
        };
        let share = |x: f32| x > 0.0 && x <= 1.0;
        let (t, r) = (self.temperature, self.repetition_penalty);
        need(t >= 0.0 && t.is_finite(), "temperature", t, "0 or a positive number")?;
        need(share(self.top_p), "top_p", self.top_p, "more than 0, at most 1")?;
        need(share(self.typical_p), "typical_p", self.typical_p, "more than 0, at most 1")?;
        need((0.0..=1.0).contains(&self.min_p), "min_p", self.min_p, "0 to 1")?;
        need(r > 0.0 && r.is_finite(), "repetition_penalty", r, "a positive number")?;
        need(
            self.presence_penalty.is_finite(),
            "presence_penalty",
            self.presence_penalty,
            "a finite number",
        )?;
        need(
            self.frequency_penalty.is_finite(),
            "frequency_penalty",
            self.frequency_penalty,
            "a finite number",
        )?;
        for &bias in self.logit_bias.values() {
            need(
                bias < f32::INFINITY,
                "logit_bias",
                bias,
                "a finite number, or minus infinity to ban a token",
            )?;
        }
        Ok(())
    }

    pub(crate) fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// JSON has no infinity, so a ban is null.
mod bias {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        map: &BTreeMap<u32, f32>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let map: BTreeMap<u32, Option<f32>> =
            map.iter().map(|(&id, &bias)| (id, (bias != f32::NEG_INFINITY).then_some(bias))).collect();
        map.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<u32, f32>, D::Error> {
        let map = BTreeMap::<u32, Option<f32>>::deserialize(deserializer)?;
        Ok(map.into_iter().map(|(id, bias)| (id, bias.unwrap_or(f32::NEG_INFINITY))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bad_options_are_named() {
        let bad = |change: fn(&mut SamplingOptions)| {
            let mut options = SamplingOptions::default();
            change(&mut options);
            match options.check() {
                Err(SamplingError::Option { option, .. }) => option,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(bad(|o| o.temperature = -0.1), "temperature");
        assert_eq!(bad(|o| o.temperature = f32::NAN), "temperature");
        assert_eq!(bad(|o| o.temperature = f32::INFINITY), "temperature");
        assert_eq!(bad(|o| o.top_p = 0.0), "top_p");
        assert_eq!(bad(|o| o.top_p = 1.01), "top_p");
        assert_eq!(bad(|o| o.top_p = f32::NAN), "top_p");
        assert_eq!(bad(|o| o.min_p = -1.0), "min_p");
        assert_eq!(bad(|o| o.min_p = f32::NAN), "min_p");
        assert_eq!(bad(|o| o.typical_p = 0.0), "typical_p");
        assert_eq!(bad(|o| o.repetition_penalty = 0.0), "repetition_penalty");
        assert_eq!(bad(|o| o.presence_penalty = f32::NAN), "presence_penalty");
        assert_eq!(bad(|o| o.frequency_penalty = f32::INFINITY), "frequency_penalty");
        assert_eq!(bad(|o| _ = o.logit_bias.insert(3, f32::NAN)), "logit_bias");
        assert_eq!(SamplingOptions::default().check(), Ok(()));
    }

    #[test]
    fn generation_configs_are_read() {
        let read = |value| SamplingOptions::from_generation_config(&value);
        let demo = json!({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [1, 2]});
        assert_eq!(
            read(demo),
            Ok(SamplingOptions { temperature: 0.6, top_p: 0.9, ..SamplingOptions::neutral() })
        );
        assert_eq!(read(json!({"eos_token_id": 1})), Ok(SamplingOptions::default()));
        assert_eq!(read(json!({"do_sample": false, "temperature": 1.0})), Ok(SamplingOptions::greedy()));
        assert_eq!(read(json!({"top_k": -1, "temperature": null})), Ok(SamplingOptions::neutral()));
        assert!(read(json!({"top_p": "much"})).is_err());
        assert!(read(json!({"temperature": -1})).is_err());
    }

    #[test]
    fn options_survive_json() {
        let mut options = SamplingOptions::default();
        options.logit_bias.extend([(5, f32::NEG_INFINITY), (7, -1.5)]);
        let text = serde_json::to_string(&options).unwrap();
        assert_eq!(serde_json::from_str::<SamplingOptions>(&text).unwrap(), options);
        assert!(serde_json::from_str::<SamplingOptions>("{\"temprature\": 1}").is_err());
    }
}
