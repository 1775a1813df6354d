//! Separation by layer as an SVG.

use std::ops::RangeInclusive;

use super::Separation;
use crate::plot::{Axis, Chart, Series};

/// Held-out accuracy (left scale, 0.5 to 1) and distance in standard deviations (right scale) over the layers; the
/// suggested ones are shaded.
pub fn separation_plot(separations: &[Separation], suggested: &RangeInclusive<usize>) -> String {
    let last = separations.len().max(2) as f64 - 1.0;
    let most = separations.iter().map(|s| s.d_prime).fold(1.0, f64::max).ceil();
    let line = |name: &str, right: bool, value: &dyn Fn(&Separation) -> f64| Series {
        name: name.to_owned(),
        points: separations.iter().map(|s| (s.layer as f64, value(s))).collect(),
        dashed: right,
        right,
    };
    let chart = Chart {
        title: "Separation by layer".to_owned(),
        x: Axis::whole("layer (suggested ones shaded)", 0.0..=last),
        y: Axis::percent("held-out accuracy", 0.5..=1.0),
        right: Some(Axis { digits: 1, ..Axis::whole("standard deviations", 0.0..=most) }),
        series: vec![
            line("held-out accuracy (left)", false, &|s| s.accuracy),
            line("distance of the means (right)", true, &|s| s.d_prime),
        ],
        shaded: Some((*suggested.start() as f64 - 0.5).max(0.0)..=(*suggested.end() as f64 + 0.5).min(last)),
        marks: Vec::new(),
    };
    chart.svg()
}
