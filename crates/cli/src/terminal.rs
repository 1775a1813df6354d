//! What a person at a terminal sees on standard error: progress, dimmed reasoning, the closing line.

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A number of bytes for people.
pub fn bytes(n: usize) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A bar on standard error; nothing where it is not a terminal.
pub struct Bar(ProgressBar);

impl Bar {
    /// A spinner for work of unknown length.
    pub fn waiting(what: &str) -> Bar {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(std::time::Duration::from_millis(100));
        Bar(bar)
    }

    /// A bar of `total` steps.
    pub fn counting(what: &str, total: usize) -> Bar {
        let bar = ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len}") {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        Bar(bar)
    }

    /// A bar of bytes whose number [`Bar::set_of`] tells.
    pub fn bytes(what: &str) -> Bar {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let template = "{msg} {bar:40} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        Bar(bar)
    }

    pub fn set_of(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }

    pub fn set(&self, done: usize) {
        self.0.set_position(done as u64);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Text on standard error that stands back behind the answer: dimmed on a terminal.
pub struct Dim {
    colour: bool,
    open: bool,
}

impl Dim {
    pub fn new() -> Dim {
        Dim { colour: std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none(), open: false }
    }

    pub fn write(&mut self, text: &str) -> std::io::Result<()> {
        let mut err = std::io::stderr().lock();
        match self.colour {
            true => write!(err, "\x1b[2m{text}\x1b[0m")?,
            false => write!(err, "{text}")?,
        }
        self.open = true;
        err.flush()
    }

    /// Ends the line, if one was begun.
    pub fn end(&mut self) -> std::io::Result<()> {
        if std::mem::take(&mut self.open) {
            writeln!(std::io::stderr())?;
        }
        Ok(())
    }
}
