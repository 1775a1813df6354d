//! Reading forward through bytes that may end anywhere.

use super::GgufFault;

/// A position in a file's bytes; every read checks what is left first.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    pub fn position(&self) -> usize {
        self.at
    }

    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `length` bytes; `what` names them in the error.
    pub fn take(&mut self, length: u64, what: impl FnOnce() -> String) -> Result<&'a [u8], GgufFault> {
        let taken = usize::try_from(length).ok().and_then(|n| self.bytes.get(self.at..)?.get(..n));
        match taken {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(self.ends(u128::from(length), what())),
        }
    }

    pub fn array<const N: usize>(&mut self, what: impl FnOnce() -> String) -> Result<[u8; N], GgufFault> {
        match self.bytes[self.at..].first_chunk() {
            Some(taken) => {
                self.at += N;
                Ok(*taken)
            }
            None => Err(self.ends(N as u128, what())),
        }
    }

    pub fn u32(&mut self, what: impl FnOnce() -> String) -> Result<u32, GgufFault> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, what: impl FnOnce() -> String) -> Result<u64, GgufFault> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of entries that take at least `least` bytes each: what it claims must fit in what is left, so
    /// memory reserved for it is bounded by the file.
    pub fn count(&mut self, least: u64, what: &str) -> Result<usize, GgufFault> {
        let count = self.u64(|| what.to_owned())?;
        self.check_count(count, least, || format!("{what} ({count})"))
    }

    /// See [`Cursor::count`].
    pub fn check_count(
        &self,
        count: u64,
        least: u64,
        what: impl FnOnce() -> String,
    ) -> Result<usize, GgufFault> {
        let need = u128::from(count) * u128::from(least);
        match usize::try_from(count) {
            Ok(count) if need <= self.left() as u128 => Ok(count),
            _ => Err(self.ends(need, what())),
        }
    }

    /// A length and as many bytes.
    pub fn string(&mut self, what: impl Fn() -> String) -> Result<&'a [u8], GgufFault> {
        let length = self.u64(&what)?;
        self.take(length, what)
    }

    fn ends(&self, need: u128, what: String) -> GgufFault {
        GgufFault::Ends { what, at: self.at, need, left: self.left() }
    }
}
