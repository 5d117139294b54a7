//! The API server, as far as our programs speak to it.
//!
//! ```text
//!   routes:  paths, lists in pages, patches, bindings --> store: objects, versions, what happened
//!   watches: what happened since a version, as long as somebody listens
//!   faults:  what goes wrong on demand            journal: who asked what
//! ```
//!
//! What it does it does as the real one: versions are one number that grows, a merge patch with another `resourceVersion` or `uid` is a conflict, one that
//! changes nothing makes no version, the status is a resource of its own, a pod is bound once, a list in pages is as of one version, a watch from a version that was
//! forgotten is told 410, and one whose selector an object comes to fit or ceases to fit is told that it came or went.

mod faults;
mod journal;
mod patch;
mod routes;
mod selector;
mod store;
mod watches;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::watch;

pub use faults::{Fault, FaultAction};
pub use journal::Request;
pub use store::Key;

use faults::Faults;
use store::Store;

use crate::wait::until;

/// Time that pending requests have when the server ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// A running one. It ends when it is dropped.
pub struct ApiServer {
    address: SocketAddr,
    state: Arc<SharedState>,
    runtime: Option<Runtime>,
}

/// What all requests share.
pub(crate) struct SharedState {
    store: Mutex<Store>,
    faults: Mutex<Faults>,
    journal: Mutex<Vec<Request>>,
    /// The latest version; wakes watches.
    latest_version: watch::Sender<u64>,
    /// Counts up to break every watch that is open.
    broken: watch::Sender<u64>,
}

impl SharedState {
    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn journal(&self) -> MutexGuard<'_, Vec<Request>> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something, and tells those who watch.
    pub(crate) fn write<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let mut store = self.store();
        let result = change(&mut store);
        let version = store.version();
        self.latest_version.send_if_modified(|last| std::mem::replace(last, version) != version);
        result
    }
}

impl Default for ApiServer {
    fn default() -> Self {
        Self::start()
    }
}

impl ApiServer {
    /// Starts one with nothing in it.
    ///
    /// # Panics
    /// If there is no port left.
    #[must_use]
    pub fn start() -> Self {
        let state = Arc::new(SharedState {
            store: Mutex::default(),
            faults: Mutex::default(),
            journal: Mutex::default(),
            latest_version: watch::channel(0).0,
            broken: watch::channel(0).0,
        });
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Self { address, state, runtime: None };
        server.open();
        server
    }

    fn open(&mut self) {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().expect("threads");
        // One that had this port before may still be letting go of it, or somebody's connection has it for a moment.
        let listener =
            until("a port", || runtime.block_on(tokio::net::TcpListener::bind(self.address)).ok());
        self.address = listener.local_addr().expect("an address");
        let router = routes::router(Arc::clone(&self.state));
        runtime.spawn(async move { axum::serve(listener, router).await });
        self.runtime = Some(runtime);
    }

    /// It goes: nobody answers, and every connection breaks. What it knows stays.
    pub fn close(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        }
    }

    /// It comes back, at the same address.
    ///
    /// # Panics
    /// If somebody else has taken its port.
    pub fn reopen(&mut self) {
        self.close();
        self.open();
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes a kubeconfig that leads to it.
    ///
    /// # Panics
    /// If the folder cannot be written.
    #[must_use]
    pub fn kubeconfig(&self, folder: &Path) -> PathBuf {
        let path = folder.join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: fake\n\
             clusters:\n- name: fake\n  cluster:\n    server: {}\n\
             users:\n- name: somebody\n  user:\n    token: secret\n\
             contexts:\n- name: fake\n  context:\n    cluster: fake\n    user: somebody\n    namespace: kube-system\n",
            self.url()
        );
        std::fs::write(&path, text).expect("a kubeconfig");
        path
    }

    /// Creates an object, or puts it in the place of the one that is there, as somebody with all rights.
    pub fn put(&self, plural: &str, object: Value) -> Value {
        self.state.write(|store| store.put(plural, object))
    }

    /// Changes an object. False: there is none.
    pub fn edit(&self, key: &Key, change: impl FnOnce(&mut Value)) -> bool {
        self.state.write(|store| store.edit(key, change)).is_some()
    }

    /// Takes it away, as when its time of grace is over. False: there is none.
    pub fn remove(&self, key: &Key) -> bool {
        self.state.write(|store| store.remove(key)).is_some()
    }

    /// As it is.
    #[must_use]
    pub fn object(&self, key: &Key) -> Option<Value> {
        self.state.store().get(key).map(|object| Value::clone(&object))
    }

    /// All of a kind.
    #[must_use]
    pub fn objects(&self, plural: &str) -> Vec<Value> {
        self.state.store().all(plural).map(|object| Value::clone(object)).collect()
    }

    /// What was asked, so far.
    #[must_use]
    pub fn journal(&self) -> Vec<Request> {
        self.state.journal().clone()
    }

    /// What goes wrong from now on.
    pub fn fault(&self, fault: Fault) {
        self.state.faults().add(fault);
    }

    /// Nothing goes wrong any more.
    pub fn mend(&self) {
        *self.state.faults() = Faults::default();
    }

    /// Ends every watch that is open in the middle of a line.
    pub fn break_watches(&self) {
        self.state.broken.send_modify(|times| *times += 1);
    }

    /// Forgets what happened: who watches from an older version is told 410.
    pub fn compact(&self) {
        self.state.store().compact();
    }

    /// The next so many things that happen are told to no watch.
    pub fn lose_events(&self, count: usize) {
        self.state.faults().lose = count;
    }

    /// Whether everything that happens is told twice.
    pub fn double_events(&self, double: bool) {
        self.state.faults().double = double;
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.close();
    }
}
