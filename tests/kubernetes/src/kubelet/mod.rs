//! The kubelet, as far as a device plugin speaks to it.
//!
//! What it does it does as the real one: when it starts it removes every file of its folder and makes its socket anew; it takes messages of 4 MiB and no more; who
//! registers is connected to, asked for options, and listened to; what falls silent has no device that is well. A container is asked for alone, one resource at a time,
//! init containers first, whose ids go on to those after them in the same pod; ids are free again when their pod has ended and somebody else needs them; what was given to a
//! container is remembered beyond a restart, and given again when the container restarts.

mod devices;
mod registration;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use devices::Manager;
use serde_json::Value;
use tokio::runtime::Runtime;

/// Timeout for an expected offer.
const OFFER_TIMEOUT: Duration = Duration::from_secs(60);

/// What is remembered, and by whom it is shared.
pub(crate) type Shared = Arc<Mutex<Manager>>;

pub(crate) fn locked(shared: &Shared) -> MutexGuard<'_, Manager> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running one.
pub struct Kubelet {
    folder: PathBuf,
    shared: Shared,
    runtime: Option<Runtime>,
}

/// Devices of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Those that can be given.
    pub healthy: usize,
    /// All of them.
    pub all: usize,
}

/// What a container is to be started with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Its name in the pod.
    pub container: String,
    /// By resource.
    pub ids: BTreeMap<String, Vec<String>>,
    /// Of all its resources.
    pub variables: BTreeMap<String, String>,
    /// Names of CDI devices.
    pub devices: Vec<String>,
}

impl Kubelet {
    /// Starts one in this folder.
    ///
    /// # Panics
    /// If it cannot listen there.
    #[must_use]
    pub fn start(folder: &Path) -> Self {
        let mut kubelet =
            Self { folder: folder.to_owned(), shared: Shared::default(), runtime: None };
        kubelet.open();
        kubelet
    }

    fn open(&mut self) {
        fs::create_dir_all(&self.folder).expect("a folder");
        for entry in fs::read_dir(&self.folder).expect("a folder") {
            fs::remove_file(entry.expect("a file").path()).expect("a file that can be removed");
        }
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("threads");
        let socket = self.folder.join("kubelet.sock");
        let listener = {
            let _inside = runtime.enter();
            tokio::net::UnixListener::bind(socket).expect("a socket")
        };
        runtime.spawn(registration::serve(listener, self.folder.clone(), Arc::clone(&self.shared)));
        self.runtime = Some(runtime);
    }

    /// It goes: its connections break. What it has given it remembers.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        locked(&self.shared).disconnect();
    }

    /// It comes again.
    pub fn restart(&mut self) {
        self.stop();
        self.open();
    }

    /// What is offered of a resource; none: nobody has registered it with this one.
    #[must_use]
    pub fn offer(&self, resource: &str) -> Option<Offer> {
        locked(&self.shared).offer(resource)
    }

    /// How often a resource was registered.
    #[must_use]
    pub fn registrations(&self, resource: &str) -> usize {
        locked(&self.shared).registrations(resource)
    }

    /// What was wrong with what plugins said.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        locked(&self.shared).complaints.clone()
    }

    /// Waits until so many are offered.
    ///
    /// # Panics
    /// If they never are.
    pub fn offers(&self, resource: &str, healthy: usize, all: usize) {
        let expected = Some(Offer { healthy, all });
        let deadline = Instant::now() + OFFER_TIMEOUT;
        while self.offer(resource) != expected {
            assert!(
                Instant::now() < deadline,
                "{resource}: expected {expected:?}, is {:?}; {:?}",
                self.offer(resource),
                self.complaints()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A pod comes: all its containers get their devices, or none is started. One that was here already gets what it has.
    ///
    /// # Errors
    /// What the pod's status would say.
    ///
    /// # Panics
    /// If the kubelet does not run.
    pub fn admit(&self, pod: &Value) -> Result<Vec<Given>, String> {
        self.runtime
            .as_ref()
            .expect("a kubelet that runs")
            .block_on(devices::admit(&self.shared, pod))
    }

    /// A pod has ended: its devices are free.
    ///
    /// # Panics
    /// If it has no uid.
    pub fn end(&self, pod: &Value) {
        locked(&self.shared).end(pod["metadata"]["uid"].as_str().expect("a uid"));
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.stop();
    }
}
