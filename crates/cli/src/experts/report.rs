//! `turbospark experts report`: what a trace says, in tables and plots.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use turbospark_engine::routes::{HitCurve, LayerRouteStatistics, Plot, RouteStatistics, plots};
use turbospark_experts::trace::Contender;
use turbospark_formats::Checkpoint;
use turbospark_text::TextModel;

use super::simulate::{load, write_table};
use crate::error::CliError;
use crate::terminal::Bar;

/// Tell what a trace says of each layer and of pools, in tables and plots
#[derive(Args)]
#[command(
    after_help = "On standard output: for each layer load, entropy, overlap with the token before, recall of what the \
layer before\nforetold, the most used experts; then the share of experts that each policy finds in a slot. In --out: \
report.html\nwith every plot, the plots as SVG, and report.json with counts, co-occurrence and the tokens that use \
each expert most.\n\nExample:\n  turbospark experts report book.routing --out report/ --model model.gguf"
)]
pub struct ReportArgs {
    /// A trace, as experts trace, run --router-trace and capture --router-trace write it
    trace: PathBuf,
    /// A folder for plots and JSON; it is made if it is missing
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The model, whose tokenizer then gives the text of tokens; demo for the one that ships with the program
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Print one JSON object instead of the tables
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    trace: String,
    #[serde(flatten)]
    statistics: RouteStatistics,
    hits: HitCurve,
}

impl ReportArgs {
    pub fn execute(&self) -> Result<(), CliError> {
        let trace = load(&self.trace)?;
        let text = self.model.as_deref().map(tokenizer).transpose()?;
        let sizes = HitCurve::sizes(&trace);
        let bar = Bar::counting("replaying", sizes.len() * Contender::all().len());
        let hits = HitCurve::of(&trace, Contender::all(), sizes, &|done| bar.set(done));
        drop(bar);
        let statistics = RouteStatistics::of(&trace, text.as_ref());
        let report = Report { trace: self.trace.display().to_string(), statistics, hits };
        if let Some(folder) = &self.out {
            report.save(folder)?;
        }
        let out = &mut std::io::stdout().lock();
        if self.json {
            serde_json::to_writer(&mut *out, &report).map_err(std::io::Error::from)?;
            return Ok(writeln!(out)?);
        }
        Ok(report.write(out)?)
    }
}

fn tokenizer(path: &Path) -> Result<TextModel, CliError> {
    let checkpoint = match path.to_str() {
        Some("demo") if !path.exists() => Checkpoint::from_gguf(turbospark_engine::demo_source())?,
        _ => Checkpoint::open(path)?,
    };
    Ok(TextModel::open(&checkpoint)?)
}

/// The most used experts of a layer.
fn favourites(layer: &LayerRouteStatistics, tokens: usize) -> String {
    let mut order: Vec<usize> = (0..layer.counts.len()).collect();
    order.sort_by_key(|&expert| (std::cmp::Reverse(layer.counts[expert]), expert));
    let share = |expert: &usize| 100.0 * layer.counts[*expert] as f64 / tokens.max(1) as f64;
    let shown: Vec<String> =
        order.iter().take(3).map(|expert| format!("{expert} ({:.0} %)", share(expert))).collect();
    shown.join(", ")
}

impl Report {
    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let statistics = &self.statistics;
        let (tokens, layers) = (statistics.tokens, statistics.layers.len());
        writeln!(
            out,
            "{}: {tokens} tokens, {layers} layers, {} experts a token in each\n",
            self.trace, statistics.experts_per_token
        )?;
        writeln!(
            out,
            "layer  experts  unused  entropy, bits of at most  overlap   recall  most used (share of the tokens)"
        )?;
        for layer in &statistics.layers {
            let unused = layer.counts.iter().filter(|&&count| count == 0).count();
            let recall = layer.recall_of_prediction.map(|recall| format!("{:.1} %", recall * 100.0));
            writeln!(
                out,
                "{:5}  {:7}  {unused:6}  {:13.3} {:10.3}  {:5.1} %  {:>7}  {}",
                layer.layer,
                layer.counts.len(),
                layer.entropy_bits,
                (layer.counts.len().max(1) as f64).log2(),
                100.0 * layer.overlap_with_previous,
                recall.as_deref().unwrap_or("-"),
                favourites(layer, tokens)
            )?;
        }
        writeln!(out, "\nexperts found in a slot, in percent:\n")?;
        let name = Path::new(&self.trace).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        write_table(out, &[(name, self.hits.clone())], true)
    }

    fn save(&self, folder: &Path) -> Result<(), CliError> {
        std::fs::create_dir_all(folder).map_err(|error| CliError::file(folder, error))?;
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(|error| CliError::file(&path, error))
        };
        let plots = plots(&self.statistics, &self.hits);
        for Plot { name, svg } in &plots {
            write(&format!("{name}.svg"), svg)?;
        }
        let json = serde_json::to_string(self).map_err(std::io::Error::from)?;
        write("report.json", &(json + "\n"))?;
        write("report.html", &self.html(&plots))
    }

    fn html(&self, plots: &[Plot]) -> String {
        let mut page = String::from(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Routing</title>\
             <style>body{font-family:sans-serif;max-width:60em;margin:2em auto}svg{max-width:100%}</style></head>\n\
             <body>\n",
        );
        let tokens = self.statistics.tokens;
        page += &format!("<h1>Routing of {tokens} tokens</h1>\n");
        for Plot { svg, .. } in plots {
            page += "<p>";
            page += svg;
            page += "</p>\n";
        }
        page + "</body></html>\n"
    }
}
