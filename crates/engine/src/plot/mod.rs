//! Charts and heat maps as SVG.
//!
//! A heat map of a large model has tens of thousands of cells: here those of one shade are one path, which keeps its
//! file some hundred kilobytes.

mod chart;
mod heat;

use std::fmt::{Arguments, Display, Write};

pub use chart::{Axis, Chart, Series};
pub use heat::{HeatMap, panels};

/// A drawing that grows.
pub(crate) struct Canvas {
    text: String,
}

/// Which way a text lies from its point.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Canvas {
    /// A white canvas with a title.
    pub fn new(width: f64, height: f64, title: &str) -> Canvas {
        let mut canvas = Canvas { text: String::new() };
        canvas.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             font-family=\"sans-serif\" font-size=\"11\">"
        ));
        canvas.put(format_args!(
            "<rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\
             <text x=\"14\" y=\"20\" font-size=\"13\" font-weight=\"bold\">{}</text>",
            escaped(title)
        ));
        canvas
    }

    /// A line of SVG as it is.
    pub fn put(&mut self, line: Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(line);
        self.text.push('\n');
    }

    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, colour: &str, text: impl Display) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(&text.to_string());
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>"
        ));
    }

    /// A text that reads upwards, centred at a point.
    pub fn upwards(&mut self, x: f64, y: f64, colour: &str, text: &str) {
        let text = escaped(text);
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" fill=\"{colour}\" \
             transform=\"rotate(-90 {x:.1} {y:.1})\">{text}</text>"
        ));
    }

    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

/// Text that is no markup, without characters that XML does not have.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Round numbers from `from` to `to`, about `count` of them.
fn ticks(from: f64, to: f64, count: usize) -> Vec<f64> {
    let rough = (to - from) / count.max(1) as f64;
    if !rough.is_finite() || rough <= 0.0 {
        return vec![from];
    }
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|&step| step >= rough);
    let step = step.unwrap_or(10.0 * power);
    let first = (from / step - 1e-9).ceil() as i64;
    let last = (to / step + 1e-9).floor() as i64;
    (first..=last).map(|n| n as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within() {
        assert_eq!(ticks(0.0, 1.0, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(0.0, 767.0, 8), [0.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0]);
        assert_eq!(ticks(3.0, 3.0, 5), [3.0]);
        assert_eq!(ticks(0.0, f64::NAN, 5), [0.0]);
    }

    #[test]
    fn text_is_no_markup() {
        let mut canvas = Canvas::new(10.0, 10.0, "<script>");
        canvas.text(0.0, 0.0, Anchor::End, "#000000", "a & \"b\"\u{1}");
        let svg = canvas.finish();
        assert!(svg.contains("&lt;script&gt;") && svg.contains("a &amp; &quot;b&quot; <"), "{svg}");
    }
}
