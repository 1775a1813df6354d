//! Shades of cells.

use super::{Anchor, Canvas};

/// From little to much, of one hue.
const SHADES: [&str; 10] = [
    "#f7fbff", "#e3eef9", "#cfe1f2", "#b5d4e9", "#93c4df", "#6baed6", "#4b97c9", "#2f7ebc", "#1864aa",
    "#0a3f7f",
];
const LEFT: f64 = 62.0;
const TOP: f64 = 40.0;
const LEGEND: f64 = 90.0;

/// A table of values as shades.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatMap {
    /// What it shows.
    pub title: String,
    /// What columns are.
    pub x: String,
    /// What rows are.
    pub y: String,
    /// What a value is, with its unit.
    pub unit: String,
    /// The name of each row, and its values: those of the darkest shade are `most` and more; one that is not finite
    /// is left out.
    pub rows: Vec<(String, Vec<f64>)>,
    /// The value of the darkest shade.
    pub most: f64,
}

fn shade(value: f64, most: f64) -> usize {
    let place = if most > 0.0 { value / most } else { 0.0 };
    ((place * SHADES.len() as f64) as usize).min(SHADES.len() - 1)
}

/// The cells of a table from a corner on, one path a shade.
fn cells<'a>(
    canvas: &mut Canvas,
    rows: impl Iterator<Item = &'a [f64]>,
    most: f64,
    at: (f64, f64),
    size: (f64, f64),
) {
    let mut paths: [String; SHADES.len()] = Default::default();
    for (row, values) in rows.enumerate() {
        let y = at.1 + row as f64 * size.1;
        for (column, &value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            let x = at.0 + column as f64 * size.0;
            let (width, height) = size;
            paths[shade(value, most)] += &format!("M{x:.1} {y:.1}h{width:.1}v{height:.1}h-{width:.1}z");
        }
    }
    for (path, shade) in paths.iter().zip(SHADES).filter(|(path, _)| !path.is_empty()) {
        canvas.put(format_args!("<path d=\"{path}\" fill=\"{shade}\"/>"));
    }
}

/// The scale of shades, beside a drawing.
fn legend(canvas: &mut Canvas, x: f64, unit: &str, most: f64) {
    for (index, shade) in SHADES.iter().enumerate() {
        let y = TOP + 14.0 * (SHADES.len() - 1 - index) as f64;
        canvas.put(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"14\" height=\"14\" fill=\"{shade}\"/>"
        ));
        if index.is_multiple_of(3) {
            let from = 100.0 * most * index as f64 / SHADES.len() as f64;
            let digits = usize::from(100.0 * most < 30.0);
            canvas.text(x + 19.0, y + 14.0, Anchor::Start, "#333333", format!("{from:.digits$} %"));
        }
    }
    let words: Vec<&str> = unit.split('\n').collect();
    for (line, text) in words.into_iter().enumerate() {
        let y = TOP + 14.0 * SHADES.len() as f64 + 16.0 + 13.0 * line as f64;
        canvas.text(x, y, Anchor::Start, "#333333", text);
    }
}

impl HeatMap {
    /// The drawing; values are shares, shown as percent.
    pub fn svg(&self) -> String {
        let columns = self.rows.iter().map(|(_, values)| values.len()).max().unwrap_or(0).max(1);
        let cell = (
            (560.0 / columns as f64).clamp(4.0, 36.0),
            (160.0 / self.rows.len().max(1) as f64).clamp(9.0, 24.0),
        );
        let (right, bottom) = (LEFT + cell.0 * columns as f64, TOP + cell.1 * self.rows.len() as f64);
        let height = (bottom + 44.0).max(TOP + 14.0 * SHADES.len() as f64 + 60.0);
        let width = (right + LEGEND + 24.0).max(420.0);
        let mut canvas = Canvas::new(width, height, &self.title);
        cells(&mut canvas, self.rows.iter().map(|(_, values)| &values[..]), self.most, (LEFT, TOP), cell);
        let every = (11.0 / cell.1).ceil() as usize;
        for (row, (name, _)) in self.rows.iter().enumerate().step_by(every) {
            let y = TOP + cell.1 * (row as f64 + 0.5) + 4.0;
            canvas.text(LEFT - 6.0, y, Anchor::End, "#333333", name);
        }
        let every = ((28.0 / cell.0).ceil() as usize).next_power_of_two();
        for column in (0..columns).step_by(every) {
            let x = LEFT + cell.0 * (column as f64 + 0.5);
            canvas.text(x, bottom + 14.0, Anchor::Middle, "#333333", column);
        }
        canvas.text((LEFT + right) / 2.0, bottom + 32.0, Anchor::Middle, "#333333", &self.x);
        canvas.upwards(16.0, (TOP + bottom) / 2.0, "#333333", &self.y);
        legend(&mut canvas, right + 16.0, &self.unit, self.most);
        canvas.finish()
    }
}

/// Square tables side by side, each with its name, on one scale.
pub fn panels(title: &str, unit: &str, tables: &[(String, Vec<Vec<f64>>)], most: f64) -> String {
    const SIDE: f64 = 128.0;
    const GAP: (f64, f64) = (14.0, 26.0);
    let across = tables.len().clamp(1, 5);
    let down = tables.len().div_ceil(across);
    let right = 14.0 + (SIDE + GAP.0) * across as f64;
    let height = (TOP + (SIDE + GAP.1) * down as f64 + 8.0).max(TOP + 14.0 * SHADES.len() as f64 + 70.0);
    let mut canvas = Canvas::new((right + LEGEND + 40.0).max(420.0), height, title);
    for (index, (name, rows)) in tables.iter().enumerate() {
        let x = 14.0 + (SIDE + GAP.0) * (index % across) as f64;
        let y = TOP + (SIDE + GAP.1) * (index / across) as f64;
        canvas.text(x, y + 8.0, Anchor::Start, "#333333", name);
        let cell = SIDE / rows.len().max(1) as f64;
        cells(&mut canvas, rows.iter().map(|row| &row[..]), most, (x, y + 13.0), (cell, cell));
        canvas.put(format_args!(
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{SIDE}\" height=\"{SIDE}\" fill=\"none\" stroke=\"#bbbbbb\"/>",
            y + 13.0
        ));
    }
    legend(&mut canvas, right + 6.0, unit, most);
    canvas.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_shade_of_their_share() {
        assert_eq!([0.0, 0.05, 0.1, 0.99, 1.0, 7.0].map(|value| shade(value, 1.0)), [0, 0, 1, 9, 9, 9]);
        assert_eq!(shade(1.0, 0.0), 0);
        let rows = vec![("3".to_owned(), vec![0.0, 1.0, f64::NAN]), ("5".to_owned(), vec![1.0, 1.0])];
        let words = ["loads", "expert", "layer", "share"].map(str::to_owned);
        let [title, x, y, unit] = words;
        let svg = HeatMap { title, x, y, unit, rows, most: 1.0 }.svg();
        let darkest = svg.lines().find(|line| line.starts_with("<path") && line.contains(SHADES[9])).unwrap();
        assert_eq!(darkest.matches('M').count(), 3, "{darkest}");
        for text in [">loads<", ">expert<", ">layer<", ">share<", ">3<", ">5<"] {
            assert!(svg.contains(text), "{text}");
        }
    }
}
