//! The terminal: taken, drawn on, and given back as it was, whichever way we go.

use std::io::{self, IsTerminal, Stdout};
use std::panic;
use std::sync::Once;

use anyhow::{Result, ensure};
use cgpu_shm::atomic::{AtomicU32, Ordering};
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{Frame, Terminal};
use rustix::process::{Signal, kill_current_process_group};

/// Whether there is a terminal to draw on.
pub(crate) fn check() -> Result<()> {
    let instead = "use `cgpu smi --watch` here";
    ensure!(
        io::stdin().is_terminal() && io::stdout().is_terminal(),
        "expected a terminal, found standard input or output going elsewhere: {instead}"
    );
    let term = std::env::var("TERM").unwrap_or_default();
    ensure!(
        !matches!(term.as_str(), "" | "dumb" | "unknown"),
        "expected a terminal that can be drawn on, found TERM={term:?}: {instead}"
    );
    Ok(())
}

/// The terminal while it is ours.
pub(crate) struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    pub(crate) fn enter() -> Result<Self> {
        give_back_before_panics();
        // Made first: dropping it gives back whatever has been taken by then.
        let screen = Self(Terminal::new(CrosstermBackend::new(io::stdout()))?);
        take()?;
        Ok(screen)
    }

    pub(crate) fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> Result<()> {
        self.0.draw(render)?;
        Ok(())
    }

    /// All of it is drawn anew the next time.
    pub(crate) fn clear(&mut self) -> Result<()> {
        // Not the terminal's own `clear`: it asks where the cursor is, and the answer would go to whoever reads the keys.
        self.0.backend_mut().clear()?;
        self.0.swap_buffers();
        Ok(())
    }

    /// Stops as others do, until we are told to go on: all of our process group, as the terminal's own Ctrl-Z would, so that whoever started us
    /// in a pipe or from a script stops as well. A shell that is none of it is not there to take note, and then nothing stops us.
    pub(crate) fn suspend(&mut self) -> Result<()> {
        give_back();
        // Stopped here.
        kill_current_process_group(Signal::TSTP)?;
        take()?;
        self.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// 1 while the terminal is ours.
static TAKEN: AtomicU32 = AtomicU32::new(0);

fn take() -> Result<()> {
    TAKEN.store(1, Ordering::SeqCst);
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen)?;
    Ok(())
}

/// Once: leaving the alternate screen again would put the cursor back to where it was, into what has been written since. A terminal that
/// is gone needs nothing.
fn give_back() {
    if TAKEN.swap(0, Ordering::SeqCst) == 0 {
        return;
    }
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// The message of a panic is to be read.
fn give_back_before_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            give_back();
            previous(info);
        }));
    });
}
