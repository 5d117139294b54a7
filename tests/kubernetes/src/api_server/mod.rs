//! A fake API server with the functions that our programs use.
//!
//! ```text
//!   routes:  paths, lists in pages, patches, bindings --> store: objects, versions, events
//!   watches: the events after a version, until the client disconnects
//!   faults:  injected faults                      journal: the requests
//! ```
//!
//! It behaves as the real one. Versions are one growing number. A merge patch with another
//! `resourceVersion` or `uid` is a conflict, and one that changes nothing makes no version. The
//! status is a subresource. A pod is bound once. A list in pages is of one version. A watch from a
//! compacted version gets 410. An object that begins or ceases to match a watch's selector is
//! reported as added or deleted.

mod faults;
mod journal;
mod patch;
mod routes;
mod selector;
mod store;
mod watches;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
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

const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// A running server. It ends when it is dropped.
pub struct ApiServer {
    address: SocketAddr,
    state: Arc<SharedState>,
    runtime: Option<Runtime>,
}

pub(crate) struct SharedState {
    store: Mutex<Store>,
    faults: Mutex<Faults>,
    journal: Mutex<Vec<Request>>,
    /// The latest version; wakes watches.
    latest_version: watch::Sender<u64>,
    broken: watch::Sender<u64>,
    /// Bytes of all bodies that were sent.
    sent: AtomicU64,
}

impl SharedState {
    pub(crate) fn count(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn journal(&self) -> MutexGuard<'_, Vec<Request>> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
    /// Starts an empty server.
    #[must_use]
    pub fn start() -> Self {
        let state = Arc::new(SharedState {
            store: Mutex::default(),
            faults: Mutex::default(),
            journal: Mutex::default(),
            latest_version: watch::channel(0).0,
            broken: watch::channel(0).0,
            sent: AtomicU64::new(0),
        });
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Self { address, state, runtime: None };
        server.open();
        server
    }

    fn open(&mut self) {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().expect("threads");
        // A previous server or another connection may still have this port.
        let listener =
            until("a port", || runtime.block_on(tokio::net::TcpListener::bind(self.address)).ok());
        self.address = listener.local_addr().expect("an address");
        let router = routes::router(Arc::clone(&self.state));
        runtime.spawn(async move { axum::serve(listener, router).await });
        self.runtime = Some(runtime);
    }

    /// Stops the server and breaks every connection. Its objects stay.
    pub fn close(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        }
    }

    /// Starts the server again at the same address.
    pub fn reopen(&mut self) {
        self.close();
        self.open();
    }

    /// Returns its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes a kubeconfig for it.
    #[must_use]
    pub fn kubeconfig(&self, folder: &Path) -> PathBuf {
        let path = folder.join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: fake\n\
             clusters:\n- name: fake\n  cluster:\n    server: {}\n\
             users:\n- name: tester\n  user:\n    token: secret\n\
             contexts:\n- name: fake\n  context:\n    cluster: fake\n    user: tester\n    namespace: kube-system\n",
            self.url()
        );
        std::fs::write(&path, text).expect("a kubeconfig");
        path
    }

    /// Creates or replaces an object, without any checks.
    pub fn put(&self, plural: &str, object: Value) -> Value {
        self.state.write(|store| store.put(plural, object))
    }

    /// Changes an object. Returns false if there is none.
    pub fn edit(&self, key: &Key, change: impl FnOnce(&mut Value)) -> bool {
        self.state.write(|store| store.edit(key, change)).is_some()
    }

    /// Removes an object, as at the end of its grace period. Returns false if there is none.
    pub fn remove(&self, key: &Key) -> bool {
        self.state.write(|store| store.remove(key)).is_some()
    }

    /// Returns an object.
    #[must_use]
    pub fn object(&self, key: &Key) -> Option<Value> {
        self.state.store().get(key).map(|object| Value::clone(&object))
    }

    /// Returns all objects of a kind.
    #[must_use]
    pub fn objects(&self, plural: &str) -> Vec<Value> {
        self.state.store().all(plural).map(|object| Value::clone(object)).collect()
    }

    /// Returns the requests so far.
    #[must_use]
    pub fn journal(&self) -> Vec<Request> {
        self.state.journal().clone()
    }

    /// Adds a fault.
    pub fn fault(&self, fault: Fault) {
        self.state.faults().add(fault);
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        *self.state.faults() = Faults::default();
    }

    /// Breaks every open watch in the middle of a line.
    pub fn break_watches(&self) {
        self.state.broken.send_modify(|times| *times += 1);
    }

    /// Compacts the history: a watch from an older version gets 410.
    pub fn compact(&self) {
        self.state.store().compact();
    }

    /// Sets whether watches report nothing. What they have not reported comes later.
    pub fn hold_watches(&self, hold: bool) {
        self.state.faults().hold = hold;
        // Wakes them.
        self.state.latest_version.send_modify(|_| ());
    }

    /// Returns the bytes that were sent in bodies so far.
    #[must_use]
    pub fn bytes_sent(&self) -> u64 {
        self.state.sent.load(Ordering::Relaxed)
    }

    /// Withholds this many coming events from all watches.
    pub fn lose_events(&self, count: usize) {
        self.state.faults().lose = count;
    }

    /// Sets whether every event is sent twice.
    pub fn double_events(&self, double: bool) {
        self.state.faults().double = double;
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.close();
    }
}
