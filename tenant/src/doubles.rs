//! The outer edge as tests see it: an environment that they declare, a clock that they move, a container of their own.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsString};
use std::path::{Path, PathBuf};

use cgpu_proto::atomic::{AtomicU64, AtomicUsize, Ordering};
use cgpu_proto::units::{Bytes, CardIndex, Nanos};
use cgpu_proto::uuid::Uuid;

use crate::{CardInfo, Clock, Environment, Inventory, Monotonic, Refusal, Start, Tenant};

/// An environment as a test declares it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Declared {
    pub(crate) variables: BTreeMap<String, OsString>,
    pub(crate) run_directory: PathBuf,
    pub(crate) shared_memory_directory: PathBuf,
}

impl Declared {
    /// With these variables, `NAME=value` each.
    pub(crate) fn with(variables: &[&str]) -> Self {
        let mut declared = Self::default();
        declared.set(variables);
        declared
    }

    /// With these variables too.
    pub(crate) fn set(&mut self, variables: &[&str]) {
        for variable in variables {
            let (name, value) = variable.split_once('=').expect("NAME=value");
            self.variables.insert(name.to_owned(), value.into());
        }
    }
}

impl Environment for Declared {
    fn variable(&self, name: &CStr) -> Option<OsString> {
        self.variables.get(name.to_str().expect("names are ASCII")).cloned()
    }

    fn user(&self) -> u32 {
        // SAFETY: no obligations; geteuid cannot fail.
        unsafe { libc::geteuid() }
    }

    fn pid_namespace(&self) -> u64 {
        4_026_531_836
    }

    fn process_name(&self) -> Vec<u8> {
        b"a-test".to_vec()
    }

    fn host_name(&self) -> String {
        "012b2edccd7a".to_owned()
    }

    fn run_directory(&self) -> PathBuf {
        self.run_directory.clone()
    }

    fn shared_memory_directory(&self) -> PathBuf {
        self.shared_memory_directory.clone()
    }
}

/// A clock that stands still but for sleepers and for the test.
#[derive(Debug)]
pub(crate) struct Hand {
    now: AtomicU64,
    slept: AtomicU64,
}

impl Hand {
    /// One that shows the real time, as of now.
    pub(crate) fn new() -> &'static Self {
        Box::leak(Box::new(Self { now: AtomicU64::new(Monotonic.now().0), slept: AtomicU64::new(0) }))
    }

    pub(crate) fn advance(&self, time: Nanos) {
        self.now.fetch_add(time.0, Ordering::Relaxed);
    }

    /// How long sleepers have slept in all.
    pub(crate) fn slept(&self) -> Nanos {
        Nanos(self.slept.load(Ordering::Relaxed))
    }
}

impl Clock for Hand {
    fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::Relaxed))
    }

    fn sleep(&self, time: Nanos) {
        self.slept.fetch_add(time.0, Ordering::Relaxed);
        self.advance(time);
    }
}

/// The one card of [`Container`]: 100 MiB.
pub(crate) const CARD: CardInfo = CardInfo { uuid: Uuid([7; 16]), total: Bytes(100 << 20), order: 0 };

/// A container in a directory of its own, with variables that give it a limit.
pub(crate) struct Container {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) environment: Declared,
    pub(crate) clock: &'static Hand,
    contexts: AtomicUsize,
}

impl Container {
    /// With a limit of so many MiB.
    pub(crate) fn limited(mib: u64) -> Self {
        let container = format!("ALIYUN_COM_GPU_MEM_CONTAINER={mib}");
        Self::with(&[&container, "CGPU_MEM_UNIT=MiB"])
    }

    /// With these variables, and with its region where regions are by default.
    pub(crate) fn with(variables: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut environment = Declared::with(variables);
        environment.run_directory = directory.path().join("run");
        environment.shared_memory_directory = directory.path().join("shm");
        for made in [&environment.run_directory, &environment.shared_memory_directory] {
            std::fs::create_dir(made).expect("a directory");
        }
        Self { directory, environment, clock: Hand::new(), contexts: AtomicUsize::new(0) }
    }

    /// Where its region lies by default.
    pub(crate) fn run(&self) -> &Path {
        &self.environment.run_directory
    }

    /// One more process starts.
    pub(crate) fn start(&self) -> Result<Start, Refusal> {
        self.start_by(self.clock)
    }

    /// One more process starts, by a clock of its own.
    pub(crate) fn start_by(&self, clock: &'static dyn Clock) -> Result<Start, Refusal> {
        Tenant::start(&self.environment, Inventory { cards: &[CARD], cut: &[], complete: true }, clock)
    }

    /// One more process, which keeps books.
    pub(crate) fn tenant(&self) -> Tenant {
        match self.start() {
            Ok(Start::On(tenant)) => tenant,
            other => panic!("expected a tenant, found {other:?}"),
        }
    }

    /// A handle that no other context of this container has.
    pub(crate) fn handle(&self) -> crate::ContextId {
        crate::ContextId(0x5500_0000_0000 + self.contexts.fetch_add(1, Ordering::Relaxed) * 64)
    }
}

/// The card of every container here.
pub(crate) fn card() -> CardIndex {
    CardIndex::new(0).expect("a card's index")
}
