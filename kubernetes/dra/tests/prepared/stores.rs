//! Stores that fail.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use cgpu_kubernetes_dra::store::{Kind, Store};

/// What happens at a step, counted from 0.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The process is killed before it: this step and all later ones do nothing.
    Kill(usize),
    /// It fails, and later ones succeed.
    Fail(usize),
}

/// Counts steps, and fails one or all from one on.
#[derive(Debug, Default)]
struct Steps {
    fault: Option<Fault>,
    was_hit: bool,
}

impl Steps {
    fn set(&mut self, fault: Option<Fault>) {
        *self = Self { fault, was_hit: false };
    }

    fn take(&mut self) -> io::Result<()> {
        let failed = |text: &str| Err(io::Error::other(text.to_owned()));
        match &mut self.fault {
            None => Ok(()),
            Some(Fault::Kill(0)) => {
                self.was_hit = true;
                failed("killed")
            }
            Some(Fault::Fail(0)) => {
                (self.fault, self.was_hit) = (None, true);
                failed("no space left")
            }
            Some(Fault::Kill(left) | Fault::Fail(left)) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

type Files = BTreeMap<(Kind, String), String>;

/// Files in memory, with what would survive a failure of power. It is not shared by threads.
#[derive(Clone, Default)]
pub(crate) struct MemoryStore(Rc<RefCell<Disk>>);

#[derive(Default)]
struct Disk {
    visible: Files,
    durable: Files,
    staged: Files,
    steps: Steps,
}

impl MemoryStore {
    pub(crate) fn set(&self, fault: Option<Fault>) {
        self.0.borrow_mut().steps.set(fault);
    }

    pub(crate) fn was_hit(&self) -> bool {
        self.0.borrow().steps.was_hit
    }

    /// Ends the process, or the node: then only what was synced is left of the records, and nothing
    /// of the other files, which are in memory.
    pub(crate) fn restart(&self, reboot: bool) {
        let mut disk = self.0.borrow_mut();
        disk.steps.set(None);
        if reboot {
            disk.durable.retain(|(kind, _), _| *kind == Kind::Record);
            disk.visible = disk.durable.clone();
        }
    }

    /// Returns a file in place, without a step.
    pub(crate) fn text(&self, kind: Kind, name: &str) -> Option<String> {
        self.0.borrow().visible.get(&(kind, name.to_owned())).cloned()
    }

    /// Returns the names of files in place, without a step.
    pub(crate) fn listed(&self, kind: Kind) -> Vec<String> {
        let disk = self.0.borrow();
        disk.visible
            .keys()
            .filter(|(other, _)| *other == kind)
            .map(|(_, name)| name.clone())
            .collect()
    }

    /// Returns the number of all files, unfinished ones included.
    pub(crate) fn count(&self) -> usize {
        let disk = self.0.borrow();
        disk.visible.len() + disk.staged.len()
    }
}

impl Store for MemoryStore {
    fn stage(&self, kind: Kind, name: &str, text: &str) -> io::Result<()> {
        let mut disk = self.0.borrow_mut();
        let key = (kind, name.to_owned());
        disk.steps.take()?;
        disk.staged.insert(key.clone(), text[..text.len() / 2].to_owned());
        disk.steps.take()?;
        disk.staged.insert(key, text.to_owned());
        Ok(())
    }

    fn publish(&self, kind: Kind, name: &str) -> io::Result<()> {
        let mut disk = self.0.borrow_mut();
        let key = (kind, name.to_owned());
        disk.steps.take()?;
        let text = disk.staged.remove(&key).ok_or(io::ErrorKind::NotFound)?;
        disk.visible.insert(key.clone(), text.clone());
        disk.steps.take()?;
        disk.durable.insert(key, text);
        Ok(())
    }

    fn remove(&self, kind: Kind, name: &str) -> io::Result<()> {
        let mut disk = self.0.borrow_mut();
        let key = (kind, name.to_owned());
        disk.steps.take()?;
        disk.visible.remove(&key);
        disk.steps.take()?;
        disk.durable.remove(&key);
        Ok(())
    }

    fn recover(&self) -> io::Result<()> {
        let mut disk = self.0.borrow_mut();
        disk.steps.take()?;
        disk.staged.clear();
        disk.durable = disk.visible.clone();
        Ok(())
    }

    fn names(&self, kind: Kind) -> io::Result<Vec<String>> {
        self.0.borrow_mut().steps.take()?;
        Ok(self.listed(kind))
    }

    fn read(&self, kind: Kind, name: &str) -> io::Result<Option<String>> {
        self.0.borrow_mut().steps.take()?;
        Ok(self.text(kind, name))
    }
}

/// A store whose process is killed before or after a call.
pub(crate) struct Faulty<S> {
    store: S,
    steps: RefCell<Steps>,
}

impl<S> Faulty<S> {
    pub(crate) fn new(store: S) -> Self {
        Self { store, steps: RefCell::default() }
    }

    pub(crate) fn set(&self, fault: Option<Fault>) {
        self.steps.borrow_mut().set(fault);
    }

    pub(crate) fn was_hit(&self) -> bool {
        self.steps.borrow().was_hit
    }

    fn around<T>(&self, call: impl FnOnce(&S) -> io::Result<T>) -> io::Result<T> {
        self.steps.borrow_mut().take()?;
        let answer = call(&self.store);
        self.steps.borrow_mut().take()?;
        answer
    }
}

impl<S: Store> Store for Faulty<S> {
    fn stage(&self, kind: Kind, name: &str, text: &str) -> io::Result<()> {
        self.around(|store| store.stage(kind, name, text))
    }

    fn publish(&self, kind: Kind, name: &str) -> io::Result<()> {
        self.around(|store| store.publish(kind, name))
    }

    fn remove(&self, kind: Kind, name: &str) -> io::Result<()> {
        self.around(|store| store.remove(kind, name))
    }

    fn recover(&self) -> io::Result<()> {
        self.around(S::recover)
    }

    fn names(&self, kind: Kind) -> io::Result<Vec<String>> {
        self.around(|store| store.names(kind))
    }

    fn read(&self, kind: Kind, name: &str) -> io::Result<Option<String>> {
        self.around(|store| store.read(kind, name))
    }
}
