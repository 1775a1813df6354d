//! Strings that end an answer wherever tokens cut them.

/// Watches text for stop strings; a tail that may be the beginning of one is held back.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    strings: Vec<String>,
    held: String,
    stopped: bool,
}

impl StopStrings {
    /// Watches for any of the strings; empty ones are ignored.
    pub fn new<S: Into<String>>(strings: impl IntoIterator<Item = S>) -> Self {
        let strings = strings.into_iter().map(Into::into).filter(|s: &String| !s.is_empty()).collect();
        StopStrings { strings, ..Self::default() }
    }

    /// Appends the text that can be shown. Returns the stop string if one is complete: text before it has been
    /// appended, the string itself and all after it is dropped.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<&str> {
        if self.stopped {
            return None;
        }
        if self.strings.is_empty() {
            out.push_str(text);
            return None;
        }
        self.held.push_str(text);
        let first = self
            .strings
            .iter()
            .enumerate()
            .filter_map(|(which, stop)| self.held.find(stop.as_str()).map(|at| (at, which)))
            .min();
        if let Some((at, which)) = first {
            out.push_str(&self.held[..at]);
            self.held.clear();
            self.stopped = true;
            return self.strings.get(which).map(String::as_str);
        }
        let keep = self.strings.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let shown = self.held.len() - keep;
        out.push_str(&self.held[..shown]);
        self.held.drain(..shown);
        None
    }

    /// Appends what was held back, at the end of an answer that was not stopped.
    pub fn flush(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// Whether a stop string was found.
    pub fn stopped(&self) -> bool {
        self.stopped
    }
}

/// Length of the longest end of `text` that begins `stop` without being all of it.
pub(crate) fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|&len| stop.is_char_boundary(len) && text.as_bytes().ends_with(&stop.as_bytes()[..len]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_cut_by_tokens_is_found() {
        let mut stops = StopStrings::new(["\nUser:", "END"]);
        let mut out = String::new();
        assert_eq!(stops.push("hi\nUs", &mut out), None);
        assert_eq!(out, "hi");
        assert_eq!(stops.push("age", &mut out), None);
        assert_eq!(out, "hi\nUsage");
        assert_eq!(stops.push(" E", &mut out), None);
        assert_eq!(out, "hi\nUsage ");
        assert_eq!(stops.push("N", &mut out), None);
        assert_eq!(stops.push("D of it", &mut out), Some("END"));
        assert_eq!(out, "hi\nUsage ");
        assert!(stops.stopped());
        stops.flush(&mut out);
        assert_eq!(out, "hi\nUsage ");
    }

    #[test]
    fn the_tail_is_flushed_and_the_earliest_wins() {
        let mut stops = StopStrings::new(["abc"]);
        let mut out = String::new();
        stops.push("xab", &mut out);
        stops.flush(&mut out);
        assert_eq!(out, "xab");
        let mut stops = StopStrings::new(["bc", "abcd"]);
        out.clear();
        assert_eq!(stops.push("zabcd", &mut out), Some("abcd"));
        assert_eq!(out, "z");
    }
}
