//! Containers, a GPU and the scheduler under test, in virtual time.

use cgpu_scheduler::policy::{Entitlement, Policy, Presence};
use cgpu_scheduler::report::TenantReport;
use cgpu_scheduler::tuning::Tuning;
use cgpu_scheduler::{Gpu as Controller, Share};
use cgpu_scheduler::{Observation, TenantId};
use cgpu_shm::units::{Nanos, SlotIndex};

use crate::gpu::{Gpu, Random};
use crate::process::{Load, MS, Page, Process, Siblings, US};

/// Changes what the monitor reads.
pub(crate) type Forge = fn(&mut TenantReport, &mut Random, u64);

pub(crate) struct Container {
    pub(crate) id: TenantId,
    pub(crate) page: Page,
    pub(crate) processes: Vec<Process>,
    pub(crate) forge: Option<Forge>,
    pub(crate) has_doorbell: bool,
    /// Registered, though perhaps without a process.
    pub(crate) created: bool,
}

/// NVML's samples of containers' GPU time: whole percents, over whole windows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nvml {
    /// Time of each container's work at the ends of windows, until it is read.
    windows: Vec<Vec<u64>>,
    next_read: u64,
}

const WINDOW: u64 = SECOND / 6;

pub(crate) struct Harness {
    pub(crate) now: u64,
    pub(crate) gpu: Gpu,
    pub(crate) scheduler: Controller,
    pub(crate) containers: Vec<Container>,
    next_step: u64,
    /// Notifications that will arrive: time, and container.
    notifications: Vec<(u64, usize)>,
    /// Found by the monitor's scan, and not observed yet.
    found: Vec<usize>,
    random: Random,
    /// Number of scheduler steps.
    pub(crate) steps: u64,
    /// The monitor is stopped until then.
    pub(crate) frozen: u64,
    /// NVML, if there is one.
    pub(crate) nvml: Option<Nvml>,
    /// Delay of one wake-up in fifty, of the monitor or of a thread.
    pub(crate) late_by: u64,
}

impl Harness {
    pub(crate) fn new(policy: Policy, tenants: &[(u32, &[Load])]) -> Self {
        Self::with(policy, tenants, 1024 * US, 100 * US, Tuning::DEFAULT, 1)
    }

    pub(crate) fn with(
        policy: Policy,
        tenants: &[(u32, &[Load])],
        slice: u64,
        switch: u64,
        tuning: Tuning,
        seed: u64,
    ) -> Self {
        let groups: Vec<usize> = tenants
            .iter()
            .enumerate()
            .flat_map(|(number, tenant)| vec![number; tenant.1.len()])
            .collect();
        let mut scheduler = Controller::new(tuning, policy);
        let mut containers = Vec::new();
        let mut context = 0;
        for (number, (weight, loads)) in tenants.iter().enumerate() {
            let id = TenantId(number as u64);
            scheduler.admit(Nanos::ZERO, id, Entitlement::of_weight(*weight));
            let processes = loads
                .iter()
                .enumerate()
                .map(|(slot, load)| {
                    context += 1;
                    Process::new(context - 1, u8::try_from(slot).unwrap(), *load)
                })
                .collect();
            let page = Page { gate: 1, notify_requested: true, ..Page::default() };
            containers.push(Container {
                id,
                page,
                processes,
                forge: None,
                has_doorbell: true,
                created: true,
            });
        }
        Self {
            now: 0,
            gpu: Gpu::new(groups, slice, switch),
            scheduler,
            containers,
            next_step: 0,
            notifications: Vec::new(),
            found: (0..tenants.len()).collect(),
            random: Random::new(seed),
            steps: 0,
            frozen: 0,
            nvml: Some(Nvml::default()),
            late_by: 0,
        }
    }

    /// The control tree was written: all containers are observed.
    pub(crate) fn notify_all(&mut self) {
        self.found = (0..self.containers.len()).collect();
        self.next_step = self.now;
    }

    /// Starts a new monitor, which knows only what it finds.
    pub(crate) fn restart_monitor(&mut self, policy: Policy, weights: &[u32]) {
        self.scheduler = Controller::new(Tuning::DEFAULT, policy);
        for (container, weight) in self.containers.iter_mut().zip(weights) {
            self.scheduler.admit(Nanos(self.now), container.id, Entitlement::of_weight(*weight));
            container.page =
                Page { gate: container.page.gate + 1, notify_requested: true, ..Page::default() };
            for process in &mut container.processes {
                process.wake(self.now + 20 * US);
            }
        }
        self.found = (0..self.containers.len()).collect();
        self.next_step = self.now;
    }

    pub(crate) fn run_for(&mut self, time: u64) {
        let until = self.now + time;
        while self.now < until {
            let heard = self
                .notifications
                .iter()
                .map(|has_doorbell| has_doorbell.0)
                .min()
                .unwrap_or(u64::MAX)
                .max(self.frozen);
            let processes = self.containers.iter().flat_map(|container| &container.processes);
            let next = processes
                .map(Process::next)
                .min()
                .unwrap_or(u64::MAX)
                .min(self.gpu.next_event())
                .min(self.next_step.max(self.frozen))
                .min(heard)
                .min((self.now / WINDOW + 1) * WINDOW)
                .clamp(self.now, until);
            // Events of the GPU at this very instant run by advancing a nanosecond.
            let next = if next == self.now { self.now + 1 } else { next };
            self.gpu.run_until(next);
            self.now = next;
            self.run_processes();
            self.run_nvml();
            self.run_monitor();
        }
    }

    fn run_processes(&mut self) {
        for (number, container) in self.containers.iter_mut().enumerate() {
            for at in 0..container.processes.len() {
                let mut siblings = Siblings::default();
                for (other, process) in container.processes.iter().enumerate() {
                    siblings.working += u64::from(
                        other != at && process.cell.inflight > 0 && process.cell.ends > self.now,
                    );
                    if other != at && process.cell.turn == container.page.turn && !process.dead {
                        siblings.spent += process.cell.spent;
                        siblings.remaining +=
                            process.cell.ends.saturating_sub(self.now).min(process.cell.inflight);
                    }
                }
                let asked = container.processes[at].run(
                    self.now,
                    &mut self.gpu,
                    &container.page,
                    siblings,
                    &mut self.random,
                );
                if asked.notify {
                    self.notifications
                        .push((self.now + self.random.between(5 * US, 30 * US), number));
                }
            }
        }
    }

    fn observation(&mut self, number: usize, notified: bool) -> Observation {
        let container = &self.containers[number];
        let random = &mut self.random;
        let mut reports = Vec::new();
        for process in container.processes.iter().filter(|process| !process.dead) {
            let cell = &process.cell;
            let mut read = TenantReport {
                slot: SlotIndex(process.slot),
                generation: 1,
                turn: cell.turn,
                waiting: cell.waiting,
                active: cell.active,
                busy: cell.busy,
                inflight: cell.inflight,
                ends: cell.ends,
                spent: cell.spent,
                last: cell.last,
            };
            if let Some(forge) = container.forge {
                forge(&mut read, random, self.now);
            }
            reports.push(read);
        }
        let presence = Presence { created: container.created, open: !reports.is_empty() };
        Observation {
            tenant: container.id,
            presence,
            has_doorbell: container.has_doorbell,
            notified,
            unreadable: false,
            reports,
        }
    }

    fn run_monitor(&mut self) {
        if self.now < self.frozen {
            return;
        }
        let notified: Vec<usize> = self
            .notifications
            .iter()
            .filter(|has_doorbell| has_doorbell.0 <= self.now)
            .map(|has_doorbell| has_doorbell.1)
            .collect();
        if notified.is_empty() && self.now < self.next_step {
            return;
        }
        self.notifications.retain(|has_doorbell| has_doorbell.0 > self.now);
        self.steps += 1;
        let mut numbers: Vec<usize> = self
            .scheduler
            .interest(Nanos(self.now), !notified.is_empty())
            .map(|id| usize::try_from(id.0).unwrap())
            .collect();
        numbers.extend(&notified);
        numbers.append(&mut self.found);
        numbers.sort_unstable();
        numbers.dedup();
        let observations: Vec<Observation> = numbers
            .into_iter()
            .map(|number| self.observation(number, notified.contains(&number)))
            .collect();
        let plan = self.scheduler.advance(Nanos(self.now), &observations);
        for order in plan.orders {
            let container = &mut self.containers[usize::try_from(order.tenant.0).unwrap()];
            container.page.turn = order.gate.turn;
            container.page.granted = order.gate.granted.0;
            container.page.notify = order.gate.notify_slot.map(|slot| slot.0);
            container.page.notify_requested = order.gate.notify_requested;
            container.page.beside = order.gate.concurrent > 0;
            container.page.bound = order.gate.max_inflight.0;
            if order.bump {
                container.page.gate += 1;
            }
            if order.wake {
                for process in &mut container.processes {
                    let lag = if self.late_by > 0 && self.random.between(0, 50) == 0 {
                        self.late_by
                    } else {
                        0
                    };
                    process.wake(self.now + self.random.between(15 * US, 60 * US) + lag);
                }
            }
        }
        // The timer is slightly late.
        let lag =
            if self.late_by > 0 && self.random.between(0, 50) == 0 { self.late_by } else { 0 };
        let late = self.random.between(2 * US, 20 * US) + lag;
        self.frozen = self.frozen.max(self.now + lag);
        self.next_step = if plan.next_step == Nanos::MAX {
            u64::MAX
        } else {
            plan.next_step.0.max(self.now + US) + late
        };
    }

    /// Ends a window where one is over; once a second the monitor reads them.
    fn run_nvml(&mut self) {
        if self.now.is_multiple_of(WINDOW) {
            let ran = self.ran();
            if let Some(nvml) = &mut self.nvml {
                nvml.windows.push(ran);
            }
        }
        let Some(nvml) = self.nvml.as_mut().filter(|nvml| nvml.next_read <= self.now) else {
            return;
        };
        if self.now < self.frozen {
            return;
        }
        nvml.next_read = self.now + SECOND + self.random.between(0, 2 * MS);
        if let [first, .., last] = &nvml.windows[..] {
            let span = (nvml.windows.len() as u64 - 1) * WINDOW;
            let percents: Vec<u64> =
                first.iter().zip(last).map(|(a, b)| (b - a) * 100 / span).collect();
            let measured =
                |id: TenantId| u32::try_from(percents[usize::try_from(id.0).unwrap()]).unwrap();
            self.scheduler.audit(Nanos(self.now), Some(Nanos(span)), measured);
            nvml.windows.drain(..nvml.windows.len() - 1);
        }
    }

    /// Changes a container's entitlement, as a write to the control tree does.
    pub(crate) fn set_entitlement(&mut self, number: usize, entitlement: Entitlement) {
        self.scheduler.set_entitlement(Nanos(self.now), TenantId(number as u64), entitlement);
        self.notify_all();
    }

    /// Sets the container that is to have its turn at the same time as on another GPU.
    pub(crate) fn summon(&mut self, id: Option<TenantId>) {
        if self.scheduler.summon(id) {
            self.next_step = self.now;
        }
    }

    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.scheduler.set_policy(Nanos(self.now), policy);
        self.notify_all();
    }

    /// Returns the time of each container's executed work.
    pub(crate) fn ran(&self) -> Vec<u64> {
        self.containers
            .iter()
            .map(|container| {
                container.processes.iter().map(|process| self.gpu.queues[process.context].ran).sum()
            })
            .collect()
    }

    /// Returns the same for the next period.
    pub(crate) fn run_and_measure(&mut self, time: u64) -> Vec<u64> {
        let before = self.ran();
        self.run_for(time);
        self.check_audits();
        self.ran().iter().zip(before).map(|(after, before)| after - before).collect()
    }

    /// Checks that no compliant container is taken for one that hides its work.
    fn check_audits(&self) {
        for (number, container) in self.containers.iter().enumerate() {
            let ungated = container.processes.iter().any(|process| process.ungated);
            if container.forge.is_none() && !ungated {
                let hidden = self.share(number).account.anomalies.hidden;
                assert_eq!(hidden, 0, "container {number} is charged for hidden work");
            }
        }
    }

    pub(crate) fn share(&self, number: usize) -> Share<'_> {
        self.scheduler.share(Nanos(self.now), TenantId(number as u64)).unwrap()
    }

    pub(crate) fn kill(&mut self, number: usize) {
        for process in &mut self.containers[number].processes {
            process.dead = true;
            self.gpu.drop_context(process.context);
        }
    }

    pub(crate) fn stop(&mut self, number: usize, stopped: bool) {
        for process in &mut self.containers[number].processes {
            process.stopped = stopped;
        }
    }
}

/// Returns the greatest relative error of a share, in percent.
pub(crate) fn share_error(ran: &[u64], weights: &[u64]) -> f64 {
    let (sum, whole) = (ran.iter().sum::<u64>() as f64, weights.iter().sum::<u64>() as f64);
    ran.iter()
        .zip(weights)
        .map(|(&ran, &weight)| ((ran as f64 / sum) / (weight as f64 / whole) - 1.0).abs() * 100.0)
        .fold(0.0, f64::max)
}

/// Returns how much of the time work ran, in percent.
pub(crate) fn utilisation(ran: &[u64], time: u64) -> f64 {
    ran.iter().sum::<u64>() as f64 * 100.0 / time as f64
}

pub(crate) const SECOND: u64 = 1000 * MS;
