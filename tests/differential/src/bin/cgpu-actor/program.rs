//! The process: its GPUs, each with what it has there, and its threads.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use cgpu_differential::command::{Answer, Step, Thread};
use cgpu_differential::line::Line;

use crate::actor::Actor;
use crate::driver::Api;

/// State that the actors of all GPUs share.
pub(crate) struct Common {
    pub(crate) cuda: Api,
    pub(crate) nvml: Api,
    /// Socket for descriptors.
    pub(crate) line: Line,
}

/// The actor of each GPU.
struct Gpus {
    common: Arc<Common>,
    actors: BTreeMap<usize, Actor>,
}

impl Gpus {
    fn perform(&mut self, step: &Step) -> Result<Answer> {
        let actor = self
            .actors
            .entry(step.gpu)
            .or_insert_with(|| Actor::new(Arc::clone(&self.common), step.gpu));
        let mut answer = actor.perform(&step.command)?;
        for (gpu, actor) in &self.actors {
            if *gpu != step.gpu {
                answer.elsewhere += actor.keeps()?;
            }
        }
        Ok(answer)
    }
}

/// A process of the driver API, whose threads take turns.
pub(crate) struct Program {
    gpus: Arc<Mutex<Gpus>>,
    second: Option<Second>,
}

impl Program {
    pub(crate) fn start() -> Result<Self> {
        let common = Common {
            cuda: Api::open("libcuda.so.1")?,
            nvml: Api::open("libnvidia-ml.so.1")?,
            line: Line::from_environment()?,
        };
        let gpus = Gpus { common: Arc::new(common), actors: BTreeMap::new() };
        Ok(Self { gpus: Arc::new(Mutex::new(gpus)), second: None })
    }

    pub(crate) fn perform(&mut self, step: Step) -> Result<Answer> {
        let gpus = Arc::clone(&self.gpus);
        match step.thread {
            Thread::First => perform(&gpus, &step),
            Thread::Second => self.second.get_or_insert_with(|| Second::start(gpus)).perform(step),
            Thread::Passing => joined(std::thread::spawn(move || perform(&gpus, &step)))?,
        }
    }
}

fn perform(gpus: &Mutex<Gpus>, step: &Step) -> Result<Answer> {
    gpus.lock().unwrap_or_else(PoisonError::into_inner).perform(step)
}

fn joined<T>(thread: JoinHandle<T>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))
}

/// A thread that lives as long as the process.
struct Second {
    steps: Sender<Step>,
    answers: Receiver<Result<Answer>>,
}

impl Second {
    fn start(gpus: Arc<Mutex<Gpus>>) -> Self {
        let (steps, mine) = channel();
        let (its, answers) = channel();
        // Not joined: the thread ends with the process.
        std::thread::spawn(move || {
            for step in mine {
                if its.send(perform(&gpus, &step)).is_err() {
                    break;
                }
            }
        });
        Self { steps, answers }
    }

    fn perform(&self, step: Step) -> Result<Answer> {
        self.steps.send(step).context("the second thread has ended")?;
        self.answers.recv().context("the second thread has ended")?
    }
}
