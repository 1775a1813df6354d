//! Lines over an axis.

use std::ops::RangeInclusive;

use super::{Anchor, Canvas, ticks};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 54.0;
const BOTTOM: f64 = 312.0;
/// Room for names of lines beside the chart.
const LEGEND: f64 = 120.0;
/// Room for a second scale.
const SECOND: f64 = 46.0;

/// Told apart by people who see colours differently, too.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#000000"];

/// What a direction of a chart means.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What is shown, with its unit.
    pub label: String,
    /// From where to where.
    pub range: RangeInclusive<f64>,
    /// Digits of the numbers.
    pub digits: usize,
    /// Whether numbers are shown as percent.
    pub percent: bool,
}

impl Axis {
    /// An axis of whole numbers.
    pub fn whole(label: &str, range: RangeInclusive<f64>) -> Axis {
        Axis { label: label.to_owned(), range, digits: 0, percent: false }
    }

    /// An axis of shares between 0 and 1, shown as percent.
    pub fn percent(label: &str, range: RangeInclusive<f64>) -> Axis {
        Axis { label: label.to_owned(), range, digits: 0, percent: true }
    }

    fn show(&self, value: f64) -> String {
        match self.percent {
            true => format!("{:.*} %", self.digits, value * 100.0),
            false => format!("{:.*}", self.digits, value),
        }
    }

    /// Where a value lies, from 0 to 1; outside it is held at the end.
    fn place(&self, value: f64) -> f64 {
        let (from, to) = (*self.range.start(), *self.range.end());
        let place = (value - from) / (to - from);
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Whole numbers have no marks between them.
    fn ticks(&self, count: usize) -> Vec<f64> {
        let all = ticks(*self.range.start(), *self.range.end(), count);
        let whole = |value: &f64| self.percent || self.digits > 0 || value.fract() == 0.0;
        all.into_iter().filter(whole).collect()
    }
}

/// A line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// Its points; a point that is not finite interrupts the line.
    pub points: Vec<(f64, f64)>,
    /// Whether it is drawn dashed.
    pub dashed: bool,
    /// Whether it is read on the right scale.
    pub right: bool,
}

/// Lines in a frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// Along the bottom.
    pub x: Axis,
    /// On the left.
    pub y: Axis,
    /// On the right, if lines are read there.
    pub right: Option<Axis>,
    /// The lines, in the order of their names.
    pub series: Vec<Series>,
    /// A shaded range of x.
    pub shaded: Option<RangeInclusive<f64>>,
    /// Places on x that have a name.
    pub marks: Vec<(f64, String)>,
}

impl Chart {
    /// The drawing.
    pub fn svg(&self) -> String {
        let mut canvas = Canvas::new(WIDTH, HEIGHT, &self.title);
        let legend = self.series.len() > 2;
        let right =
            RIGHT - if legend { LEGEND } else { 0.0 } - if self.right.is_some() { SECOND } else { 0.0 };
        let x = |value: f64| LEFT + (right - LEFT) * self.x.place(value);
        let y = |axis: &Axis, value: f64| BOTTOM - (BOTTOM - TOP) * axis.place(value);
        if let Some(shaded) = &self.shaded {
            let (from, to) = (x(*shaded.start()), x(*shaded.end()));
            canvas.put(format_args!(
                "<rect x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#eef3e6\"/>",
                to - from,
                BOTTOM - TOP
            ));
        }
        for value in self.y.ticks(6) {
            let at = y(&self.y, value);
            canvas.put(format_args!(
                "<line x1=\"{LEFT}\" x2=\"{right:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#dddddd\"/>"
            ));
            canvas.text(LEFT - 6.0, at + 4.0, Anchor::End, "#333333", self.y.show(value));
        }
        for value in self.x.ticks(12) {
            let at = x(value);
            canvas.put(format_args!(
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{BOTTOM}\" y2=\"{:.1}\" stroke=\"#333333\"/>",
                BOTTOM + 4.0
            ));
            canvas.text(at, BOTTOM + 17.0, Anchor::Middle, "#333333", self.x.show(value));
        }
        for (value, name) in &self.marks {
            let at = x(*value);
            canvas.put(format_args!(
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{BOTTOM}\" stroke=\"#999999\" \
                 stroke-dasharray=\"2 3\"/>"
            ));
            canvas.text(at + 3.0, BOTTOM - 5.0, Anchor::Start, "#666666", name);
        }
        canvas.put(format_args!(
            "<path d=\"M{LEFT} {TOP}V{BOTTOM}H{right:.1}\" fill=\"none\" stroke=\"#333333\"/>"
        ));
        if let Some(axis) = &self.right {
            for value in axis.ticks(6) {
                canvas.text(right + 6.0, y(axis, value) + 4.0, Anchor::Start, "#333333", axis.show(value));
            }
            canvas.upwards(right + SECOND - 4.0, (TOP + BOTTOM) / 2.0, "#333333", &axis.label);
        }
        for (index, series) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let axis = self.right.as_ref().filter(|_| series.right).unwrap_or(&self.y);
            let dash = if series.dashed { " stroke-dasharray=\"6 3\"" } else { "" };
            let (mut path, mut dots, mut up) = (String::new(), String::new(), true);
            for &(at, value) in &series.points {
                let (px, py) = (x(at), y(axis, value));
                if !value.is_finite() {
                    up = true;
                    continue;
                }
                path += &format!("{}{px:.1} {py:.1}", if up { "M" } else { "L" });
                dots += &format!("M{px:.1} {py:.1}h0");
                up = false;
            }
            canvas.put(format_args!(
                "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"{dash}/>\
                 <path d=\"{dots}\" stroke=\"{colour}\" stroke-width=\"5\" stroke-linecap=\"round\"/>"
            ));
            // Few lines are named above the frame, more beside it.
            let (at, line) = match legend {
                true => (RIGHT - LEGEND + 14.0, TOP + 10.0 + 18.0 * index as f64),
                false => (LEFT + 250.0 * index as f64, TOP - 12.0),
            };
            if self.series.len() > 1 {
                canvas.put(format_args!(
                    "<path d=\"M{at:.1} {:.1}h20\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
                    line - 4.0
                ));
                canvas.text(at + 25.0, line, Anchor::Start, colour, &series.name);
            }
        }
        canvas.text((LEFT + right) / 2.0, HEIGHT - 12.0, Anchor::Middle, "#333333", &self.x.label);
        canvas.upwards(15.0, (TOP + BOTTOM) / 2.0, "#333333", &self.y.label);
        canvas.finish()
    }
}
