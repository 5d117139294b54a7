//! `cgpu top`: GPUs and containers as they go, in a terminal.
//!
//! ```text
//!   keyboard --+                     +--> Model --> view::render --> Screen
//!   signals  --+--> Event --> update-+
//!   Feed     --+                     +--> Step: write a node, suspend, leave
//!     ^                                      |
//!     +--------------------------------------+
//! ```
//!
//! The model is plain data; [`update`] and [`view`] are functions of it and know no terminal, no clock and no socket, so that tests play keys and
//! look at pictures. [`screen`] and [`feed`] are thin: one holds the terminal and gives it back, the other asks the monitor. `docs/monitoring.md`.

use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use cgpu_shm::paths;
use clap::Args;
use ratatui::crossterm::event::{self, Event as Input, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::root::Root;
use crate::{Failure, control};

mod feed;
mod history;
mod model;
mod screen;
mod theme;
mod update;
mod view;

use feed::{Feed, Request};
use model::Model;
use screen::Screen;
use theme::Theme;
use update::{Event, Step, update};

const CODES: &str = "\
Keys: ? lists them. Exit codes: 0 left with q, Esc or Ctrl-C; 1 no monitor, or it is gone for 10 s; 2 arguments not understood.
A signal ends it as it ends others, after the terminal has been put back. NO_COLOR: without colours.";

#[derive(Args)]
#[command(after_help = CODES)]
pub(crate) struct Arguments {
    /// Between two looks
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = crate::smi::seconds)]
    interval: Duration,
    /// Fails on purpose once something is drawn: for the test that the terminal is left as it was
    #[arg(long, hide = true)]
    panic: bool,
    #[command(flatten)]
    root: Root,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let theme = Theme::of_environment();
    screen::check()?;
    let socket = paths::socket(&arguments.root.path()?);
    let (events, received) = mpsc::channel();
    let (requests, requested) = mpsc::channel();
    // Asks once before anything is drawn: without a monitor there is nothing to draw.
    let feed = Feed::start(socket, arguments.interval, requested, events.clone())
        .map_err(control::unavailable)?;
    read_signals(events.clone())?;
    let mut screen = Screen::enter()?;
    read_keys(events);
    let mut model = Model::new(feed, arguments.interval);
    let end = follow(&mut model, &mut screen, &theme, &received, &requests, arguments.panic);
    drop(screen);
    match end? {
        Step::Signal(number) => {
            emulate_default_handler(number)?;
            Ok(ExitCode::FAILURE)
        }
        Step::Fail(message) => Err(anyhow::anyhow!("{message}").into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Draws, and handles events, until it is time to leave.
fn follow(
    model: &mut Model,
    screen: &mut Screen,
    theme: &Theme,
    received: &Receiver<Event>,
    requests: &Sender<Request>,
    panic: bool,
) -> Result<Step, Failure> {
    loop {
        screen.draw(|frame| view::render(model, theme, frame))?;
        assert!(!panic, "as was asked for");
        // The senders live as long as their threads, and each says when it ends.
        let mut next = received.recv().ok();
        // What has piled up is drawn once.
        while let Some(event) = next.take() {
            match update(model, event) {
                Step::Stay => {}
                Step::Redraw => screen.clear()?,
                Step::Suspend => screen.suspend()?,
                Step::Write(write) => {
                    // Whoever hears it says what came of it.
                    let _ = requests.send(Request::Write(write));
                }
                leave => return Ok(leave),
            }
            next = received.try_recv().ok();
        }
    }
}

/// Says that a thread has ended, whichever way it does.
struct ThreadEnd(Sender<Event>, &'static str);

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        let _ = self.0.send(Event::Ended(self.1));
    }
}

fn read_keys(events: Sender<Event>) {
    thread::spawn(move || {
        let _end = ThreadEnd(events.clone(), "the terminal is gone");
        while let Ok(input) = event::read() {
            let event = match input {
                Input::Key(key) if key.kind != KeyEventKind::Release => Event::Key(key),
                Input::Resize(..) => Event::Resize,
                _ => continue,
            };
            if events.send(event).is_err() {
                return;
            }
        }
    });
}

fn read_signals(events: Sender<Event>) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGTERM, SIGHUP, SIGINT, SIGQUIT])?;
    thread::spawn(move || {
        for number in &mut signals {
            let _ = events.send(Event::Signal(number));
        }
    });
    Ok(())
}
