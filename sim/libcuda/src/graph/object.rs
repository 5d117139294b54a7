//! User objects: host objects that live as long as the program, a graph or an executable graph
//! refers to them.

use std::collections::HashMap;

use cgpu_abi::types::*;
use cgpu_sim::machine::Ticket;

use super::Graphs;
use crate::answer::{Answer, INVALID_VALUE};
use crate::argument::Out;
use crate::call::{self, Call};
use crate::driver::Driver;
use crate::handle;

/// A holder of references to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    Program,
    Graph(CUgraph),
    Executable(CUgraphExec),
}

#[derive(Debug)]
struct Object {
    data: usize,
    destroy: unsafe extern "C" fn(*mut c_void),
    references: HashMap<Owner, u64>,
}

/// The program's function for the end of an object.
#[derive(Debug)]
struct Destructor {
    data: usize,
    destroy: unsafe extern "C" fn(*mut c_void),
}

#[derive(Debug, Default)]
pub(super) struct Objects {
    objects: HashMap<CUuserObject, Object>,
    /// Executable graphs that were destroyed before their last launch was done.
    ending: Vec<(Ticket, CUgraphExec)>,
    due: Vec<Destructor>,
}

impl Objects {
    fn retain(&mut self, object: CUuserObject, owner: Owner, count: c_uint) -> Answer {
        let object = self.objects.get_mut(&object).ok_or(INVALID_VALUE)?;
        if count == 0 {
            return Err(INVALID_VALUE);
        }
        *object.references.entry(owner).or_default() += u64::from(count);
        Ok(())
    }

    fn release(&mut self, handle: CUuserObject, owner: Owner, count: c_uint) -> Answer {
        let object = self.objects.get_mut(&handle).ok_or(INVALID_VALUE)?;
        let references = object.references.get_mut(&owner).ok_or(INVALID_VALUE)?;
        *references =
            references.checked_sub(u64::from(count)).filter(|_| count > 0).ok_or(INVALID_VALUE)?;
        if *references == 0 {
            object.references.remove(&owner);
        }
        self.drop_unreferenced();
        Ok(())
    }

    /// Drops the references of an owner that has ended.
    pub(super) fn end(&mut self, owner: Owner) {
        for object in self.objects.values_mut() {
            object.references.remove(&owner);
        }
        self.drop_unreferenced();
    }

    fn drop_unreferenced(&mut self) {
        for (_, object) in self.objects.extract_if(|_, object| object.references.is_empty()) {
            self.due.push(Destructor { data: object.data, destroy: object.destroy });
        }
    }

    /// Gives an owner one reference to each object of another.
    fn copy(&mut self, from: Owner, to: Owner) {
        for object in
            self.objects.values_mut().filter(|object| object.references.contains_key(&from))
        {
            *object.references.entry(to).or_default() += 1;
        }
    }
}

impl Graphs {
    /// Gives a clone references to its original's objects.
    pub(super) fn copy_references(&mut self, original: CUgraph, clone: CUgraph) {
        self.objects.copy(Owner::Graph(original), Owner::Graph(clone));
    }

    /// Gives an executable graph references to its graph's objects.
    pub(super) fn share_references(&mut self, graph: CUgraph, executable: CUgraphExec) {
        self.objects.copy(Owner::Graph(graph), Owner::Executable(executable));
    }

    /// Drops an executable graph's references once its last launch is done.
    pub(super) fn end_references(&mut self, executable: CUgraphExec, last: Option<Ticket>) {
        match last {
            Some(ticket) => self.objects.ending.push((ticket, executable)),
            None => self.objects.end(Owner::Executable(executable)),
        }
    }
}

/// Calls the destructors that are due. No lock is held: they are functions of the program.
pub(super) fn run_destructors(driver: &Driver) {
    let due = {
        let mut graphs = Graphs::of(driver);
        let objects = &mut graphs.objects;
        let is_done = |&mut (ticket, _): &mut (Ticket, CUgraphExec)| {
            driver.machine.has_passed(ticket) != Ok(false)
        };
        let ended: Vec<_> = objects.ending.extract_if(.., is_done).collect();
        ended.into_iter().for_each(|(_, executable)| objects.end(Owner::Executable(executable)));
        core::mem::take(&mut objects.due)
    };
    for Destructor { data, destroy } in due {
        // SAFETY: the program passes both to be called together, once, when nothing refers to the
        // object any more.
        call::host_function(|| unsafe { destroy(core::ptr::with_exposed_provenance_mut(data)) });
    }
}

pub(crate) fn cuUserObjectCreate(
    call: &Call,
    object_out: Out<CUuserObject>,
    ptr: Out<c_void>,
    destroy: CUhostFn,
    initial_refcount: c_uint,
    flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let object_out = object_out.required()?;
    let destroy = destroy.ok_or(INVALID_VALUE)?;
    // The flag is mandatory: destructors run asynchronously.
    if flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC || initial_refcount == 0 {
        return Err(INVALID_VALUE);
    }
    let references = HashMap::from([(Owner::Program, u64::from(initial_refcount))]);
    let object = CUuserObject(handle::fresh());
    Graphs::of(driver)
        .objects
        .objects
        .insert(object, Object { data: ptr.address(), destroy, references });
    object_out.put(object)?;
    Ok(())
}

pub(crate) fn cuUserObjectRetain(call: &Call, object: CUuserObject, count: c_uint) -> Answer {
    let driver = call.driver()?;
    Graphs::of(driver).objects.retain(object, Owner::Program, count)
}

pub(crate) fn cuUserObjectRelease(call: &Call, object: CUuserObject, count: c_uint) -> Answer {
    let driver = call.driver()?;
    Graphs::of(driver).objects.release(object, Owner::Program, count)?;
    run_destructors(driver);
    Ok(())
}

pub(crate) fn cuGraphRetainUserObject(
    call: &Call,
    graph: CUgraph,
    object: CUuserObject,
    count: c_uint,
    flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    if flags & !CU_GRAPH_USER_OBJECT_MOVE != 0 {
        return Err(INVALID_VALUE);
    }
    let mut graphs = Graphs::of(driver);
    graphs.graph(graph)?;
    graphs.objects.retain(object, Owner::Graph(graph), count)?;
    if flags & CU_GRAPH_USER_OBJECT_MOVE == 0 {
        return Ok(());
    }
    // The caller cannot move references that it does not have.
    let moved = graphs.objects.release(object, Owner::Program, count);
    moved.inspect_err(|_| {
        let _ = graphs.objects.release(object, Owner::Graph(graph), count);
    })
}

pub(crate) fn cuGraphReleaseUserObject(
    call: &Call,
    graph: CUgraph,
    object: CUuserObject,
    count: c_uint,
) -> Answer {
    let driver = call.driver()?;
    {
        let mut graphs = Graphs::of(driver);
        graphs.graph(graph)?;
        graphs.objects.release(object, Owner::Graph(graph), count)?;
    }
    run_destructors(driver);
    Ok(())
}
