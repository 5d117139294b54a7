//! The terminal: entered, drawn on, and restored however the program ends.

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

/// Checks that standard input and output are a terminal that can be drawn on.
pub(crate) fn check() -> Result<()> {
    let instead = "use `cgpu smi --watch` instead";
    ensure!(
        io::stdin().is_terminal() && io::stdout().is_terminal(),
        "standard input and output must be a terminal: {instead}"
    );
    let term = std::env::var("TERM").unwrap_or_default();
    ensure!(
        !matches!(term.as_str(), "" | "dumb" | "unknown"),
        "cannot draw on this terminal, found TERM={term:?}: {instead}"
    );
    Ok(())
}

/// The terminal in raw mode, on the alternate screen.
pub(crate) struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    pub(crate) fn enter() -> Result<Self> {
        restore_before_panics();
        // Made first, so that an error below drops it, which restores the terminal.
        let screen = Self(Terminal::new(CrosstermBackend::new(io::stdout()))?);
        enter_terminal()?;
        Ok(screen)
    }

    pub(crate) fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> Result<()> {
        self.0.draw(render)?;
        Ok(())
    }

    /// Redraws everything in the next frame.
    pub(crate) fn clear(&mut self) -> Result<()> {
        // `Terminal::clear` queries the cursor's position, and the thread that reads keys would get
        // the reply.
        self.0.backend_mut().clear()?;
        self.0.swap_buffers();
        Ok(())
    }

    /// Stops the process group until it is continued, as the terminal does on Ctrl-Z, so that a
    /// script or a pipe around this program stops, too. In an orphaned process group the kernel
    /// ignores the signal.
    pub(crate) fn suspend(&mut self) -> Result<()> {
        restore();
        // Returns when continued.
        kill_current_process_group(Signal::TSTP)?;
        enter_terminal()?;
        self.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// 1 while the terminal is entered.
static ENTERED: AtomicU32 = AtomicU32::new(0);

fn enter_terminal() -> Result<()> {
    ENTERED.store(1, Ordering::SeqCst);
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen)?;
    Ok(())
}

/// Restores the terminal once. Leaving the alternate screen twice would move the cursor into text
/// written since. Errors are ignored: the terminal may be gone.
fn restore() {
    if ENTERED.swap(0, Ordering::SeqCst) == 0 {
        return;
    }
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// Restores the terminal before a panic's message is printed.
fn restore_before_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            previous(info);
        }));
    });
}
