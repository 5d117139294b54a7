//! Tenants on a virtual clock: each does what its habit says, launching and waiting as a program would, and time jumps
//! from one action to the next. The same scene gives the same history.
#![allow(dead_code, reason = "no test uses all of it")]

use cgpu_sim::settings::Figures;
use cgpu_sim::timeline::{ContextId, Forecast, StreamId, Ticket, Timeline, WORDS};
use cgpu_sim::words::Plain;
use cgpu_sim::{Bytes, Kernel, Nanos};

/// What a tenant does, for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Habit {
    /// Launches as fast as the queue takes it.
    Saturate,
    /// Waits for each kernel.
    Synchronise,
    /// Has at most that many in flight.
    Bound(u64),
}

/// One program with one stream.
pub(crate) struct Tenant {
    pub(crate) context: ContextId,
    pub(crate) stream: StreamId,
    kernel: Kernel,
    habit: Habit,
    next: Nanos,
    awaits: Option<Ticket>,
    pub(crate) launched: u64,
}

/// A machine with tenants.
pub(crate) struct Scene {
    pub(crate) words: Plain,
    pub(crate) figures: Figures,
    pub(crate) tenants: Vec<Tenant>,
    pub(crate) now: Nanos,
}

impl Scene {
    /// That many GPUs of 8 GiB, and nobody there.
    pub(crate) fn new(gpus: usize, figures: Figures) -> Self {
        let mut words = Plain::new(WORDS);
        let mut timeline = Timeline::new(&mut words, &figures);
        (0..gpus).for_each(|gpu| timeline.install(gpu, Bytes::from_mib(8_192)));
        Self { words, figures, tenants: Vec::new(), now: Nanos::ZERO }
    }

    pub(crate) fn timeline(&mut self) -> Timeline<'_, Plain> {
        Timeline::new(&mut self.words, &self.figures)
    }

    /// A process of its own on a GPU.
    pub(crate) fn tenant(&mut self, gpu: usize, kernel: &str, habit: Habit) -> usize {
        let process = self.tenants.len();
        let now = self.now;
        let mut timeline = self.timeline();
        timeline.attach(process, 100 + u32::try_from(process).unwrap());
        let context = timeline.create_context(process, gpu).unwrap();
        let stream = timeline.create_stream(context, false).unwrap();
        let kernel = Kernel::named(kernel);
        self.tenants.push(Tenant { context, stream, kernel, habit, next: now, awaits: None, launched: 0 });
        process
    }

    /// Lets the tenants do what they do until `end`.
    pub(crate) fn run_until(&mut self, end: Nanos) {
        while let Some((next, who)) = self.tenants.iter().enumerate().map(|(who, t)| (t.next, who)).min()
            && next <= end
        {
            self.now = next;
            self.act(who);
        }
        self.now = end;
        self.timeline().advance(end);
        for gpu in 0..16 {
            self.timeline().settle(gpu, end);
        }
        self.timeline().check().unwrap();
    }

    /// Of the GPU's time since the beginning, how much the tenant computed.
    pub(crate) fn share(&mut self, who: usize) -> f64 {
        let context = self.tenants[who].context;
        let now = self.now;
        ratio(self.timeline().context_busy(context), now)
    }

    pub(crate) fn completed(&mut self, who: usize) -> u64 {
        let context = self.tenants[who].context;
        let (_, process) = self.timeline().place_of(context).unwrap();
        let pid = 100 + u32::try_from(process).unwrap();
        let uses = (0..16).flat_map(|gpu| self.timeline().processes(gpu)).collect::<Vec<_>>();
        uses.iter().filter(|each| each.pid == pid).map(|each| each.kernels).sum()
    }

    fn act(&mut self, who: usize) {
        let now = self.now;
        let Tenant { stream, kernel, habit, awaits, .. } = self.tenants[who];
        let visibility = self.figures.visibility;
        let launch_cost = self.figures.launch_cost;
        let mut timeline = self.timeline();
        timeline.advance(now);
        if let Some(ticket) = awaits {
            let wake = match (timeline.visible_at(ticket), timeline.forecast(&[ticket])) {
                (Some(instant), _) if instant <= now => None,
                (Some(instant), _) => Some(instant),
                (None, Forecast::At(instant)) => Some(instant + visibility),
                (None, Forecast::NotBefore(instant)) => Some(instant.max(now + Nanos(1))),
                (None, Forecast::Unknown) => Some(Nanos::MAX),
            };
            match wake {
                Some(wake) => self.tenants[who].next = wake,
                None => self.tenants[who].awaits = None,
            }
            return;
        }
        match timeline.launch(stream, kernel, now) {
            Ok(ticket) => {
                let tenant = &mut self.tenants[who];
                tenant.launched += 1;
                tenant.next = now + launch_cost;
                tenant.awaits = match habit {
                    Habit::Saturate => None,
                    Habit::Synchronise => Some(ticket),
                    Habit::Bound(most) if tenant.launched < most => None,
                    Habit::Bound(most) => Some(Ticket { number: ticket.number + 1 - most, ..ticket }),
                };
            }
            Err(full) => self.tenants[who].awaits = Some(full.room),
        }
    }
}

/// One span over another.
#[allow(clippy::cast_precision_loss)] // minutes of nanoseconds
pub(crate) fn ratio(part: Nanos, whole: Nanos) -> f64 {
    part.0 as f64 / whole.0 as f64
}
