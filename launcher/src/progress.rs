//! Progress of long operations: bars and spinners on a terminal, lines elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::terminal::{bars, print_note};
use crate::values::ByteSize;

/// The maximum time between lines if stderr is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// The frame interval of a spinner.
const TURN: Duration = Duration::from_millis(100);

/// The progress of one operation.
#[derive(Debug)]
pub struct Bar {
    label: String,
    unit: Unit,
    total: u64,
    started: Instant,
    output: BarOutput,
}

/// The unit of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// Bytes, with rate and remaining time.
    Bytes,
    /// Steps of an operation.
    Steps,
    /// None: the progress is unknown.
    Time,
}

#[derive(Debug)]
enum BarOutput {
    Terminal(ProgressBar),
    Lines { last: Instant },
}

/// The bar of the current loading phase.
#[derive(Debug, Default)]
pub struct Phases(Option<(String, Bar)>);

impl Bar {
    /// Creates a bar over `total` bytes.
    pub fn bytes(label: &str, total: u64) -> Self {
        Self::new(label, Unit::Bytes, total)
    }

    fn new(label: &str, unit: Unit, total: u64) -> Self {
        let now = Instant::now();
        let output = match bars() {
            None => BarOutput::Lines { last: now },
            Some(bars) => {
                let bar = ProgressBar::new(total)
                    .with_style(style(unit))
                    .with_message(label.to_owned());
                let bar = bars.add(bar);
                if unit == Unit::Time {
                    bar.enable_steady_tick(TURN);
                }
                BarOutput::Terminal(bar)
            }
        };
        let bar = Self {
            label: label.to_owned(),
            unit,
            total,
            started: now,
            output,
        };
        if matches!(bar.output, BarOutput::Lines { .. }) && unit == Unit::Bytes {
            print_note(&format!("{label}: {}", ByteSize(total)));
        }
        bar
    }

    /// Sets the completed amount.
    pub fn at(&mut self, done: u64) {
        match &mut self.output {
            BarOutput::Terminal(bar) => bar.set_position(done),
            BarOutput::Lines { last } => {
                let counts = self.unit != Unit::Time && done < self.total;
                if counts && last.elapsed() >= LINE_INTERVAL {
                    *last = Instant::now();
                    let line = line(&self.label, self.unit, done, self.total, self.started);
                    print_note(&line);
                }
            }
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let (BarOutput::Terminal(bar), Some(bars)) = (&self.output, bars()) {
            bar.finish_and_clear();
            bars.remove(bar);
        }
    }
}

impl Phases {
    /// Takes the progress of a loading engine; `total` is 0 if it is unknown.
    pub fn update(&mut self, phase: &str, done: u64, total: u64) {
        let same = self
            .0
            .as_ref()
            .is_some_and(|(shown, bar)| shown == phase && bar.total == total);
        if !same {
            let (label, unit) = match (phase, total) {
                ("start", _) => ("starting the workers".to_owned(), Unit::Time),
                ("memory", _) => ("measuring memory".to_owned(), Unit::Time),
                ("weights", 1..) => ("loading weights".to_owned(), Unit::Bytes),
                (_, 0) => (format!("loading {phase}"), Unit::Time),
                _ => (format!("loading {phase}"), Unit::Steps),
            };
            // Remove the old bar before the new one is drawn.
            self.0 = None;
            self.0 = Some((phase.to_owned(), Bar::new(&label, unit, total)));
        }
        if let Some((_, bar)) = &mut self.0 {
            bar.at(done);
        }
    }
}

fn style(unit: Unit) -> ProgressStyle {
    let template = match unit {
        Unit::Bytes => {
            "{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left"
        }
        Unit::Steps => "{msg} [{bar:30}] {pos}/{len}",
        Unit::Time => "{msg} {spinner} {elapsed}",
    };
    let style = ProgressStyle::with_template(template);
    style
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
        .tick_strings(&[".  ", ".. ", "...", " ..", "  .", "   "])
}

fn line(label: &str, unit: Unit, done: u64, total: u64, started: Instant) -> String {
    match unit {
        Unit::Steps | Unit::Time => format!("{label}: {done} of {total}"),
        Unit::Bytes => {
            let rate = done as f64 / started.elapsed().as_secs_f64().max(1e-3);
            let left = total.saturating_sub(done) as f64 / rate.max(1.0);
            let (done, total, rate) = (ByteSize(done), ByteSize(total), ByteSize(rate as u64));
            format!("{label}: {done} of {total}, {rate}/s, {left:.0} s left")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_lines_show_rate_and_time_left() {
        let started = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let line = line("weights", Unit::Bytes, 10 << 20, 30 << 20, started);
        assert!(line.starts_with("weights: 10 MiB of 30 MiB, "), "{line}");
        assert!(line.ends_with("/s, 20 s left"), "{line}");
    }
}
