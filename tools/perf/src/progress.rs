//! Progress bar: on standard error, on rank 0, and only on a terminal.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

/// Progress bar, or none.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Creates a bar of `steps` steps if `request` is true and standard error is a terminal.
    #[must_use]
    pub fn new(steps: u64, request: bool) -> Progress {
        let visible = request && std::io::stderr().is_terminal();
        let bar = visible.then(|| {
            let template = "{wide_bar:.blue} {pos}/{len} {msg} {eta} left";
            let style = ProgressStyle::with_template(template);
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(steps).with_style(style)
        });
        Progress { bar }
    }

    /// Advances by one step and shows the message `next`.
    pub fn step(&self, next: String) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
            bar.set_message(next);
        }
    }

    /// Runs a function that prints, with the bar hidden.
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
