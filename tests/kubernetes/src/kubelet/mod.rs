//! A fake kubelet with the functions that a device plugin uses.
//!
//! It behaves as the real one. At its start it removes every file of its folder but its checkpoint
//! and creates its socket. It accepts messages of at most 4 MiB. It connects to a plugin that
//! registers, gets its options and watches its devices. When the plugin disconnects, its devices
//! become unhealthy. It allocates for each container alone, one resource at a time. Init containers
//! come first, and their IDs are reused by later containers of the pod. IDs become free when their
//! pod has ended and another needs them. Allocations survive a restart of the kubelet, and a
//! restarted container gets the same ones.

mod devices;
pub mod driver;
mod registration;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use devices::Manager;
use serde_json::Value;
use tokio::runtime::Runtime;

/// What it has given to which container.
pub const CHECKPOINT: &str = "kubelet_internal_checkpoint";

const OFFER_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) type Shared = Arc<Mutex<Manager>>;

pub(crate) fn locked(shared: &Shared) -> MutexGuard<'_, Manager> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running kubelet.
pub struct Kubelet {
    folder: PathBuf,
    shared: Shared,
    runtime: Option<Runtime>,
}

/// The devices of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Devices that can be allocated.
    pub healthy: usize,
    /// All devices.
    pub all: usize,
}

/// What a container is started with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admitted {
    /// Its name in the pod.
    pub container: String,
    /// Device IDs by resource.
    pub ids: BTreeMap<String, Vec<String>>,
    /// The variables of all its resources.
    pub variables: BTreeMap<String, String>,
    /// Names of CDI devices.
    pub devices: Vec<String>,
}

impl Kubelet {
    /// Starts a kubelet in this folder.
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
            let path = entry.expect("a file").path();
            if !path.ends_with(CHECKPOINT) {
                fs::remove_file(path).expect("a file that can be removed");
            }
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

    /// Stops it and breaks its connections. It keeps its allocations.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        locked(&self.shared).disconnect();
    }

    /// Restarts it.
    pub fn restart(&mut self) {
        self.stop();
        self.open();
    }

    /// Returns the devices of a resource, or None if no plugin has registered it.
    #[must_use]
    pub fn offer(&self, resource: &str) -> Option<Offer> {
        locked(&self.shared).offer(resource)
    }

    /// Returns how often a resource was registered.
    #[must_use]
    pub fn registrations(&self, resource: &str) -> usize {
        locked(&self.shared).registrations(resource)
    }

    /// Returns the errors in what plugins sent.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        locked(&self.shared).complaints.clone()
    }

    /// Waits for this number of devices.
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

    /// Admits a pod: all its containers get their devices, or it fails. A pod that was admitted
    /// before keeps its own.
    ///
    /// # Errors
    /// The message of the pod's status.
    pub fn admit(&self, pod: &Value) -> Result<Vec<Admitted>, String> {
        let admitted = self
            .runtime
            .as_ref()
            .expect("a kubelet that runs")
            .block_on(devices::admit(&self.shared, pod));
        let checkpoint = locked(&self.shared).checkpoint().to_string();
        let fresh = self.folder.join(".checkpoint");
        fs::write(&fresh, checkpoint).expect("a file");
        fs::rename(&fresh, self.folder.join(CHECKPOINT)).expect("a file");
        admitted
    }

    /// Ends a pod, which makes its devices free.
    pub fn end(&self, pod: &Value) {
        locked(&self.shared).end(pod["metadata"]["uid"].as_str().expect("a uid"));
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.stop();
    }
}
