//! `cgpu top`: shows GPUs and containers in a terminal, updated at an interval.
//!
//! ```text
//!   keyboard --+                     +--> Model --> view::render --> Screen
//!   signals  --+--> Event --> update-+
//!   Feed     --+                     +--> Step: write a node, suspend, quit
//!     ^                                      |
//!     +--------------------------------------+
//! ```
//!
//! The model is plain data. [`update`] and [`view`] are functions of it without terminal, clock or
//! socket, so tests send keys and compare screens. [`screen`] owns the terminal and restores it;
//! [`feed`] polls the monitor. The user's page is `docs/monitoring.md`.

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
use crate::theme::Theme;
use crate::{Failure, control};

mod feed;
mod history;
mod model;
mod screen;
mod update;
mod view;

use feed::{Feed, Request};
use model::Model;
use screen::Screen;
use update::{Event, Step, update};

const CODES: &str = "\
Press ? for the keys. Set NO_COLOR to disable colours.
Exit codes: 0 left with q, Esc or Ctrl-C; 1 no monitor, or none for 10 s; 2 invalid arguments. After
a signal the terminal is restored, and the program ends by that signal.";

#[derive(Args)]
#[command(after_help = CODES)]
pub(crate) struct Arguments {
    /// Update at this interval
    #[arg(long, short, value_name = "SECONDS", default_value = "1")]
    #[arg(value_parser = crate::smi::seconds)]
    interval: Duration,
    /// Panics after the first frame: for the test that the terminal is restored
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
    // Gets a first sample before drawing: without a monitor there is nothing to draw.
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
        assert!(!panic, "requested by --panic");
        // Threads hold the senders, and each sends an event when it ends.
        let mut next = received.recv().ok();
        // Pending events are handled before the next frame.
        while let Some(event) = next.take() {
            match update(model, event) {
                Step::Stay => {}
                Step::Redraw => screen.clear()?,
                Step::Suspend => screen.suspend()?,
                Step::Write(write) => {
                    // The feed sends the outcome as an event.
                    let _ = requests.send(Request::Write(write));
                }
                end => return Ok(end),
            }
            next = received.try_recv().ok();
        }
    }
}

/// Sends an event when its thread ends, also by a panic.
struct ThreadEnd(Sender<Event>, &'static str);

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        let _ = self.0.send(Event::Ended(self.1));
    }
}

fn read_keys(events: Sender<Event>) {
    thread::spawn(move || {
        let _end = ThreadEnd(events.clone(), "cannot read from the terminal");
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
