//! Polls the monitor in a thread of its own, so that a slow reply does not block the keyboard.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use cgpu_client::connection::{Client, Failure};

use super::ThreadEnd;
use super::model::{Note, Sample, Write};
use super::update::Event;
use crate::report;

/// Timeout for a monitor that restarts.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest interval between two attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) enum Request {
    Write(Write),
}

pub(crate) struct Feed {
    socket: PathBuf,
    client: Option<Client>,
    interval: Duration,
    requests: Receiver<Request>,
    events: Sender<Event>,
}

impl Feed {
    /// Takes a first sample, then starts the thread.
    pub(crate) fn start(
        socket: PathBuf,
        interval: Duration,
        requests: Receiver<Request>,
        events: Sender<Event>,
    ) -> Result<Sample, Failure> {
        let (client, sample) = sample(None, &socket)?;
        let feed = Self { socket, client: Some(client), interval, requests, events };
        thread::spawn(move || feed.run());
        Ok(sample)
    }

    fn run(mut self) {
        let _end = ThreadEnd(self.events.clone(), "the thread that polls the monitor has ended");
        let mut last = Instant::now();
        loop {
            let interval = if self.client.is_some() {
                self.interval
            } else {
                self.interval.min(RETRY_INTERVAL)
            };
            match self.requests.recv_timeout(interval) {
                Ok(Request::Write(write)) => self.send(Event::Answered(self.write(&write))),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            match sample(self.client.take(), &self.socket) {
                Ok((client, sample)) => {
                    (self.client, last) = (Some(client), Instant::now());
                    self.send(Event::Sample(Box::new(sample)));
                }
                Err(failure) if last.elapsed() < RECONNECT_TIMEOUT.max(self.interval * 2) => {
                    self.send(Event::Lost(failure.to_string()))
                }
                Err(failure) => self.send(Event::Gone(failure.to_string())),
            }
        }
    }

    /// Sends an event. The receiver is gone while the program ends.
    fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Writes a node, on a separate connection: the other one may be broken.
    fn write(&self, write: &Write) -> Note {
        let done = Client::connect(&self.socket)
            .and_then(|mut client| client.set(&write.path, &write.value));
        match done {
            Ok(()) => Note::Done(format!("done: {}", write.meaning)),
            Err(failure) => Note::Refused(failure.to_string()),
        }
    }
}

fn sample(client: Option<Client>, socket: &Path) -> Result<(Client, Sample), Failure> {
    let mut client = client.map_or_else(|| Client::connect(socket), Ok)?;
    let mut status = client.status()?;
    report::name_simulated(&mut status);
    let turns = match client.turns() {
        Ok(turns) => turns,
        // An older monitor does not know the request.
        Err(Failure::Refused(_)) => Vec::new(),
        Err(other) => return Err(other),
    };
    Ok((client, Sample { status, turns }))
}
