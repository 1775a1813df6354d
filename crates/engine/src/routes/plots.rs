//! The plots of `experts report`.

use turbospark_experts::trace::Contender;

use super::{HitCurve, LayerRouteStatistics, RouteStatistics};
use crate::plot::{Axis, Chart, HeatMap, Series, panels};

/// Experts of a layer whose pairs are drawn: the most used.
const PAIRED: usize = 32;

/// A drawing with a name for its file.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Of the file, without an ending.
    pub name: &'static str,
    /// The drawing.
    pub svg: String,
}

/// Load, overlap and recall, entropy, pairs by layer; hits against slots. Without a prediction in the trace none of
/// its recall.
pub fn plots(statistics: &RouteStatistics, hits: &HitCurve) -> Vec<Plot> {
    let layers = &statistics.layers;
    let mut plots = vec![
        Plot { name: "load", svg: load(statistics) },
        Plot { name: "overlap", svg: overlap(statistics) },
        Plot { name: "entropy", svg: entropy(layers) },
    ];
    if layers.iter().any(|layer| layer.recall_of_prediction.is_some()) {
        plots.push(Plot { name: "recall", svg: recall(statistics) });
    }
    plots.push(Plot { name: "hit-rate", svg: hit_rate(hits) });
    if layers.iter().any(|layer| !layer.co_occurrence.is_empty()) {
        plots.push(Plot { name: "co-occurrence", svg: co_occurrence(layers) });
    }
    plots
}

fn load(statistics: &RouteStatistics) -> String {
    let tokens = statistics.tokens.max(1) as f64;
    let row = |layer: &LayerRouteStatistics| {
        let shares = layer.counts.iter().map(|&count| count as f64 / tokens);
        (layer.layer.to_string(), shares.collect::<Vec<f64>>())
    };
    let rows: Vec<_> = statistics.layers.iter().map(row).collect();
    // A single favourite must not leave the others pale.
    let mut all: Vec<f64> = rows.iter().flat_map(|(_, shares)| shares.iter().copied()).collect();
    all.sort_by(f64::total_cmp);
    let most = all.get((all.len() * 98 / 100).min(all.len().saturating_sub(1))).copied().unwrap_or(1.0);
    let map = HeatMap {
        title: "Load: share of the tokens that use each expert".to_owned(),
        x: "expert".to_owned(),
        y: "layer".to_owned(),
        unit: "of the tokens\n(and more)".to_owned(),
        rows,
        most: most.max(1e-9),
    };
    map.svg()
}

/// A line over the layers.
fn by_layer(
    layers: &[LayerRouteStatistics],
    name: &str,
    value: impl Fn(&LayerRouteStatistics) -> f64,
) -> Series {
    let points = layers.iter().map(|layer| (f64::from(layer.layer), value(layer))).collect();
    Series { name: name.to_owned(), points, dashed: false, right: false }
}

fn layer_chart(layers: &[LayerRouteStatistics], title: &str, y: Axis, series: Vec<Series>) -> String {
    let last = layers.iter().map(|layer| layer.layer).max().unwrap_or(0).max(1);
    let first = layers.iter().map(|layer| layer.layer).min().unwrap_or(0).min(last - 1);
    let chart = Chart {
        title: title.to_owned(),
        x: Axis::whole("layer", f64::from(first)..=f64::from(last)),
        y,
        right: None,
        series,
        shaded: None,
        marks: Vec::new(),
    };
    chart.svg()
}

/// What chance alone would give: a token's experts of all.
fn chance(statistics: &RouteStatistics) -> Series {
    let k = statistics.experts_per_token as f64;
    let share = |layer: &LayerRouteStatistics| k / layer.counts.len().max(1) as f64;
    Series { dashed: true, ..by_layer(&statistics.layers, "if all were liked alike", share) }
}

fn overlap(statistics: &RouteStatistics) -> String {
    let layers = &statistics.layers;
    let line = by_layer(layers, "measured", |layer| layer.overlap_with_previous);
    let y = Axis::percent("of a token's experts", 0.0..=1.0);
    let title = "Overlap: experts that the token before used as well";
    layer_chart(layers, title, y, vec![line, chance(statistics)])
}

fn recall(statistics: &RouteStatistics) -> String {
    let layers = &statistics.layers;
    let line = by_layer(layers, "measured", |layer| layer.recall_of_prediction.unwrap_or(f64::NAN));
    let y = Axis::percent("of a token's experts", 0.0..=1.0);
    let title = "Recall: experts that the layer before foretold";
    layer_chart(layers, title, y, vec![line, chance(statistics)])
}

fn entropy(layers: &[LayerRouteStatistics]) -> String {
    let most = |layer: &LayerRouteStatistics| (layer.counts.len().max(1) as f64).log2();
    let line = by_layer(layers, "measured", |layer| layer.entropy_bits);
    let even = Series { dashed: true, ..by_layer(layers, "if all were liked alike", most) };
    let top = layers.iter().map(most).fold(1.0, f64::max);
    let y = Axis { digits: 1, ..Axis::whole("bits", 0.0..=top) };
    layer_chart(layers, "Entropy of the experts' use", y, vec![line, even])
}

fn hit_rate(hits: &HitCurve) -> String {
    let line = |&contender: &Contender| {
        let rates = hits.rates_of(contender).unwrap_or_default();
        let points = hits.slots.iter().zip(rates).map(|(&slots, rate)| (slots as f64, rate)).collect();
        let dashed = !matches!(contender, Contender::Online(_));
        Series { name: contender.name().to_owned(), points, dashed, right: false }
    };
    let chart = Chart {
        title: "Experts found in a slot, by policy".to_owned(),
        x: Axis::whole("slots", 0.0..=hits.experts.max(1) as f64),
        y: Axis::percent("of the experts asked for", 0.0..=1.0),
        right: None,
        series: hits.contenders.iter().map(line).collect(),
        shaded: None,
        marks: vec![(hits.cycle as f64, format!("a cycle: {}", hits.cycle))],
    };
    chart.svg()
}

fn co_occurrence(layers: &[LayerRouteStatistics]) -> String {
    let table = |layer: &LayerRouteStatistics| {
        let mut order: Vec<usize> = (0..layer.co_occurrence.len()).collect();
        order.sort_by_key(|&expert| (std::cmp::Reverse(layer.counts[expert]), expert));
        order.truncate(PAIRED);
        let share = |a: usize, b: usize| match a == b || layer.counts[a] == 0 {
            true => f64::NAN,
            false => layer.co_occurrence[a][b] as f64 / layer.counts[a] as f64,
        };
        let rows = order.iter().map(|&a| order.iter().map(|&b| share(a, b)).collect()).collect();
        (format!("layer {}", layer.layer), rows)
    };
    let tables: Vec<(String, Vec<Vec<f64>>)> = layers.iter().map(table).collect();
    let shares = tables.iter().flat_map(|(_, rows)| rows.iter().flatten());
    let mut shares: Vec<f64> = shares.copied().filter(|share| share.is_finite()).collect();
    shares.sort_by(f64::total_cmp);
    let most = shares.get((shares.len() * 98 / 100).min(shares.len().saturating_sub(1))).copied();
    let paired = tables.iter().map(|(_, rows)| rows.len()).max().unwrap_or(0);
    let title = format!("Co-occurrence: the {paired} most used experts of each layer, most used first");
    let unit = "of the uses of a\nrow's expert, those\nthat use the\ncolumn's too\n(and more)";
    panels(&title, unit, &tables, most.unwrap_or(1.0).max(1e-9))
}
