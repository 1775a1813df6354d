//! Separation by layer as an SVG.

use std::fmt::Write;

use super::Separation;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = 590.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 260.0;

/// Held-out accuracy (left scale, 0.5 to 1) and distance in standard deviations (right scale) over the layers; the
/// suggested ones are shaded.
pub fn separation_plot(separations: &[Separation], suggested: &std::ops::RangeInclusive<usize>) -> String {
    let count = separations.len().max(2);
    let x = |layer: usize| LEFT + (RIGHT - LEFT) * layer as f64 / (count - 1) as f64;
    let most = separations.iter().map(|s| s.d_prime).fold(1.0, f64::max).ceil();
    let y = |share: f64| BOTTOM - (BOTTOM - TOP) * share.clamp(0.0, 1.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n"
    );
    let half = (RIGHT - LEFT) / (count - 1) as f64 / 2.0;
    let (from, to) = ((x(*suggested.start()) - half).max(LEFT), (x(*suggested.end()) + half).min(RIGHT));
    let mut put = |line: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = svg.write_fmt(line);
        svg.push('\n');
    };
    put(format_args!(
        "<rect x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#eef3e6\"/>",
        to - from,
        BOTTOM - TOP
    ));
    for tick in 0..=4 {
        let share = f64::from(tick) / 4.0;
        let at = y(share);
        put(format_args!(
            "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#1f5fa8\">{:.3}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#b0561c\">{:.1}</text>",
            LEFT - 6.0,
            at + 4.0,
            0.5 + share / 2.0,
            RIGHT + 6.0,
            at + 4.0,
            share * most
        ));
    }
    let every = separations.len().div_ceil(16).max(1);
    for layer in (0..separations.len()).step_by(every) {
        put(format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{layer}</text>",
            x(layer),
            BOTTOM + 16.0
        ));
    }
    let mut line = |name: &str, colour: &str, at: f64, value: &dyn Fn(&Separation) -> f64| {
        let points: Vec<String> =
            separations.iter().map(|s| format!("{:.1},{:.1}", x(s.layer), y(value(s)))).collect();
        put(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{at}\" y=\"22\" fill=\"{colour}\">{name}</text>",
            points.join(" ")
        ));
    };
    line("held-out accuracy", "#1f5fa8", LEFT, &|s| (s.accuracy - 0.5) * 2.0);
    line("distance of the means in standard deviations", "#b0561c", LEFT + 150.0, &|s| s.d_prime / most);
    put(format_args!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">layer (suggested ones shaded)</text>\n</svg>",
        (LEFT + RIGHT) / 2.0,
        HEIGHT - 8.0
    ));
    svg
}
