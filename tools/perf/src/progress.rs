//! The progress bar: on standard error, on rank 0, and only if a person is looking.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar, or nothing.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A bar of `steps` steps if `wanted` and standard error is a terminal.
    #[must_use]
    pub fn new(steps: u64, wanted: bool) -> Progress {
        let visible = wanted && std::io::stderr().is_terminal();
        let bar = visible.then(|| {
            let template = "{wide_bar:.blue} {pos}/{len} {msg} {eta} left";
            let style = ProgressStyle::with_template(template);
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(steps).with_style(style)
        });
        Progress { bar }
    }

    /// One more step is done; `next` says what comes.
    pub fn step(&self, next: String) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
            bar.set_message(next);
        }
    }

    /// Runs something that prints, with the bar out of the way.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
