//! Memory of GPUs, and of the locality domains of some.
//!
//! Memory requested in a domain is charged to the domain and to the GPU. All other memory, also of
//! contexts, is charged to the GPU alone. So a domain can be full while the GPU is not, and the GPU
//! while no domain is.

use cgpu_shm::units::Bytes;

use super::Timeline;
use super::records::{DOMAINS, Domain, DomainHolding, GPUS, Gpu, Holding, PROCESSES, Process};
use crate::error::Error;
use crate::words::Words;

/// A location of memory on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// The GPU.
    pub gpu: usize,
    /// The locality domain; `None`: anywhere.
    pub domain: Option<usize>,
}

impl From<usize> for Site {
    fn from(gpu: usize) -> Self {
        Self { gpu, domain: None }
    }
}

impl Site {
    pub(super) fn gpu(self) -> Gpu {
        Gpu(self.gpu as u64)
    }

    fn domain(self) -> Option<Domain> {
        self.domain.map(|domain| Domain::of(self.gpu(), domain as u64))
    }

    /// Returns the domain as a number for a record; 0: anywhere.
    pub(super) fn mark(self) -> u64 {
        self.domain.map_or(0, |domain| domain as u64 + 1)
    }

    pub(super) fn of(gpu: u64, mark: u64) -> Self {
        let domain = mark.checked_sub(1).map(crate::words::index);
        Self { gpu: crate::words::index(gpu), domain }
    }
}

impl<W: Words> Timeline<'_, W> {
    /// Sets the memory of each locality domain of a GPU that has several. Called once, after
    /// [`Timeline::install`].
    pub fn set_domains(&mut self, gpu: usize, domains: usize, room: Bytes) {
        for domain in 0..domains as u64 {
            self.set(Domain::of(Gpu(gpu as u64), domain).room(), room.0);
        }
    }

    /// Returns the memory requested in a locality domain, and the domain's total.
    #[must_use]
    pub fn domain_memory(&self, gpu: usize, domain: usize) -> (Bytes, Bytes) {
        let domain = Domain::of(Gpu(gpu as u64), domain as u64);
        (Bytes(self.get(domain.used())), Bytes(self.get(domain.room())))
    }

    /// Charges memory of a GPU to a process itself.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], exactly if the GPU, the domain, or a control group of the process
    /// has less than that left.
    pub fn take_memory(
        &mut self,
        process: usize,
        site: impl Into<Site>,
        size: Bytes,
    ) -> Result<(), Error> {
        let site = site.into();
        let left = self.get(site.gpu().usable()) - self.get(site.gpu().used());
        let left_there =
            site.domain().map_or(left, |domain| self.get(domain.room()) - self.get(domain.used()));
        if size.0 > left.min(left_there) {
            return Err(Error::OutOfMemory);
        }
        self.charge_group(Process(process as u64), site.gpu(), size.0)?;
        self.charge(Process(process as u64), site, size.0);
        Ok(())
    }

    /// Refunds a process's own memory, at most what it has.
    pub fn give_memory(&mut self, process: usize, site: impl Into<Site>, size: Bytes) {
        let (process, site) = (Process(process as u64), site.into());
        self.discharge(process, site, size.0);
        self.refund_groups(Holding::of(process, site.gpu()), size.0);
    }

    pub(super) fn charge(&mut self, process: Process, site: Site, size: u64) {
        let holding = Holding::of(process, site.gpu());
        for at in [site.gpu().used(), holding.memory(), holding.own()] {
            self.add(at, size);
        }
        self.note_memory(holding, site.gpu());
        if let Some(domain) = site.domain() {
            self.add(domain.used(), size);
            self.add(DomainHolding::of(process, domain).memory(), size);
        }
    }

    pub(super) fn discharge(&mut self, process: Process, site: Site, size: u64) {
        let holding = Holding::of(process, site.gpu());
        let checkpointed = self.get(holding.checkpointed()) != 0;
        self.refund_memory(holding, site.gpu(), size);
        self.subtract(holding.own(), size);
        if let Some(domain) = site.domain() {
            if !checkpointed {
                self.subtract(domain.used(), size);
            }
            self.subtract(DomainHolding::of(process, domain).memory(), size);
        }
    }

    /// Removes a process's memory from the domains of a GPU, for a checkpoint.
    pub(super) fn leave_domains(&mut self, process: Process, gpu: Gpu) {
        for domain in (0..DOMAINS).map(|domain| Domain::of(gpu, domain)) {
            let in_domains = self.get(DomainHolding::of(process, domain).memory());
            self.subtract(domain.used(), in_domains);
        }
    }

    /// Charges it again, for a restore.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if a domain has less than that left.
    pub(super) fn enter_domains(&mut self, process: Process, gpu: Gpu) -> Result<(), Error> {
        for domain in (0..DOMAINS).map(|domain| Domain::of(gpu, domain)) {
            let in_domains = self.get(DomainHolding::of(process, domain).memory());
            if in_domains > self.get(domain.room()) - self.get(domain.used()) {
                return Err(Error::OutOfMemory);
            }
            self.add(domain.used(), in_domains);
        }
        Ok(())
    }

    /// Charges memory that no process holds any more and that still exists.
    pub(super) fn orphan(&mut self, site: Site, size: u64) {
        self.add(site.gpu().used(), size);
        self.add(site.gpu().orphaned(), size);
        if let Some(domain) = site.domain() {
            self.add(domain.used(), size);
            self.add(domain.orphaned(), size);
        }
    }

    /// Refunds orphaned memory: it is freed, or a process holds it again.
    pub(super) fn unorphan(&mut self, site: Site, size: u64) {
        self.subtract(site.gpu().used(), size);
        self.subtract(site.gpu().orphaned(), size);
        if let Some(domain) = site.domain() {
            self.subtract(domain.used(), size);
            self.subtract(domain.orphaned(), size);
        }
    }

    pub(super) fn discharge_all(&mut self, process: Process, gpu: Gpu) {
        for domain in 0..DOMAINS {
            let holding = DomainHolding::of(process, Domain::of(gpu, domain));
            let size = self.get(holding.memory());
            if size != 0 {
                self.discharge(process, Site::of(gpu.0, domain + 1), size);
            }
        }
        let own = self.get(Holding::of(process, gpu).own());
        self.discharge(process, Site::of(gpu.0, 0), own);
        self.refund_groups(Holding::of(process, gpu), u64::MAX);
    }

    /// Returns a process's own memory in a domain, or on a GPU.
    pub(super) fn own(&self, process: Process, site: Site) -> u64 {
        match site.domain() {
            Some(domain) => self.get(DomainHolding::of(process, domain).memory()),
            None => self.get(Holding::of(process, site.gpu()).own()),
        }
    }

    /// Checks a GPU's domains: each contains what processes hold there and what is orphaned, at
    /// most its room; together no more than the GPU's and each process's memory.
    pub(super) fn check_domains(&self, gpu: Gpu) -> Result<(), String> {
        let domains: Vec<Domain> = (0..DOMAINS).map(|domain| Domain::of(gpu, domain)).collect();
        for &domain in &domains {
            let is_here =
                |&process: &Process| self.get(Holding::of(process, gpu).checkpointed()) == 0;
            let here = (0..PROCESSES).map(Process).filter(is_here);
            let held = here
                .map(|process| self.get(DomainHolding::of(process, domain).memory()))
                .sum::<u64>()
                + self.get(domain.orphaned());
            let (used, room) = (self.get(domain.used()), self.get(domain.room()));
            if used != held || used > room {
                return Err(format!(
                    "{domain:?} of {gpu:?} has {used} of {room} bytes, held are {held}"
                ));
            }
        }
        let used = domains.iter().map(|domain| self.get(domain.used())).sum::<u64>();
        if used > self.get(gpu.used()) {
            return Err(format!("{gpu:?} has less than its domains, {used}"));
        }
        for process in (0..PROCESSES).map(Process) {
            let in_domains =
                domains.iter().map(|&domain| self.get(DomainHolding::of(process, domain).memory()));
            let (in_domains, own) =
                (in_domains.sum::<u64>(), self.get(Holding::of(process, gpu).own()));
            if in_domains > own {
                return Err(format!(
                    "{process:?} has {own} bytes of {gpu:?}, and {in_domains} in its domains"
                ));
            }
        }
        Ok(())
    }
}

const _: () = assert!(GPUS * DOMAINS == Domain::COUNT);
