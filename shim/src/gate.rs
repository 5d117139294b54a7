//! The gate before a launch, bound to the driver. What it does and why is in [`cgpu_launch::gate`].
//!
//! The monitor changes the container's gate word when something changes for its launches, and every
//! few milliseconds while tenants contend for a GPU. A launch compares the word with the one under
//! which every GPU is open: two loads and a branch. Where they differ, the thread may have a budget
//! ([`spend`]); if not, the slow path is [`enter`].
//!
//! | module | what it is |
//! |---|---|
//! | [`thread`] | where a thread finds its own part of the gate |
//! | [`markers`] | what the gate puts on streams and asks of the driver |
//! | [`progress`] | the page that the GPU writes |

mod markers;
mod progress;
mod thread;

use core::{ptr, slice};

use cgpu_abi::driver::DefaultStream;
use cgpu_abi::types::*;
pub(crate) use cgpu_launch::gate::Kernel;
use cgpu_launch::gate::{self as gate, Admitted, ContextKey, Gate, Host, Stream, Thread};
use cgpu_memory::{ContextId, DeviceIndex, Tenant};
use cgpu_shm::atomic::{AtomicPtr, AtomicU32, Ordering, Ordering::Relaxed};
use tracing::debug;

use self::markers::{Markers, accepted};
use crate::order::Order;
use crate::{boundary, captures, current, driver, process};

/// A launch, as far as the gate has to know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    /// What is launched.
    pub(crate) kernel: Kernel,
    /// The stream, as the program named it.
    pub(crate) stream: CUstream,
    /// Which stream the null handle means.
    pub(crate) default: DefaultStream,
    /// The record with the launch's attributes; null: it has none.
    pub(crate) config: *const CUlaunchConfig,
    /// The stream may be of another context than the current one, and decides where it runs.
    pub(crate) by_stream: bool,
    /// What it costs may differ from one launch to the next: each takes the slow path.
    pub(crate) variable_cost: bool,
}

impl Launch {
    /// The null handle means the stream that all threads share.
    pub(crate) const LEGACY: Launch = Launch::of(DefaultStream::Legacy);
    /// The null handle means the thread's own stream.
    pub(crate) const PER_THREAD: Launch = Launch::of(DefaultStream::PerThread);

    const fn of(default: DefaultStream) -> Launch {
        let (kernel, stream) = (Kernel::new(0, [0; 3], [0; 3]), CUstream::NULL);
        Launch {
            kernel,
            stream,
            default,
            config: ptr::null(),
            by_stream: false,
            variable_cost: false,
        }
    }

    /// As a record says it. A null one is for the driver to refuse.
    ///
    /// # Safety
    ///
    /// `config` is null or a record of the driver's.
    #[inline(always)]
    pub(crate) unsafe fn configured(
        config: *const CUlaunchConfig,
        function: CUfunction,
        flavour: Launch,
    ) -> Launch {
        // SAFETY: the caller vouches for it.
        let Some(record) = (unsafe { config.as_ref() }) else { return flavour };
        let grid = [record.grid_dim_x, record.grid_dim_y, record.grid_dim_z];
        let block = [record.block_dim_x, record.block_dim_y, record.block_dim_z];
        let kernel = Kernel::new(function.0, grid, block);
        Launch { kernel, stream: record.stream, config, ..flavour }
    }

    /// A copy or a fill within the GPU.
    #[inline(always)]
    pub(crate) fn copy(bytes: usize, stream: CUstream, flavour: Launch) -> Launch {
        Launch { kernel: Kernel::copy(bytes as u64), stream, by_stream: true, ..flavour }
    }

    /// An executable graph.
    pub(crate) fn graph(graph: CUgraphExec, stream: CUstream, flavour: Launch) -> Launch {
        Launch {
            kernel: Kernel::graph(graph.0),
            stream,
            by_stream: true,
            variable_cost: true,
            ..flavour
        }
    }

    #[inline(always)]
    fn stream(&self) -> Stream {
        Stream { handle: self.stream.0, per_thread: self.default == DefaultStream::PerThread }
    }

    /// Whether it may begin before its predecessor on the stream has ended. No other attribute has
    /// anything to do with what stands before or behind a launch: events that it carries are the
    /// program's, priorities and clusters are its own.
    fn is_programmatic(&self) -> bool {
        // SAFETY: null, or the program's own record.
        let Some(record) = (unsafe { self.config.as_ref() }) else { return false };
        if record.attrs.is_null() {
            return false;
        }
        // SAFETY: the program says that there are so many.
        let attributes = unsafe { slice::from_raw_parts(record.attrs, record.num_attrs as usize) };
        attributes.iter().any(|attribute| {
            attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
                // SAFETY: the attribute's value is this member.
                && unsafe { attribute.value.programmatic_stream_serialization_allowed } != 0
        })
    }
}

/// The gate word while no monitor writes one. Never changes.
static UNTOUCHED: AtomicU32 = AtomicU32::new(0);

/// The word that launches look at: in the mapped `grant` page, or [`UNTOUCHED`]. Never null.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const UNTOUCHED).cast_mut());

/// The word under which every GPU is open, as far as this process has looked.
static OPEN: AtomicU32 = AtomicU32::new(0);

/// The gate of this process; null: nothing is gated.
static GATE: AtomicPtr<ProcessGate> = AtomicPtr::new(ptr::null_mut());

/// The gate of a process, and its platform.
struct ProcessGate {
    gate: Gate<'static>,
    host: Host<'static>,
}

impl ProcessGate {
    fn thread_exited(&self, thread: &Thread) {
        self.gate.thread_exited(thread, &self.host);
    }
}

fn gate() -> Option<&'static ProcessGate> {
    // Acquire: the gate is whole.
    let gate = GATE.load(Ordering::Acquire);
    // SAFETY: null, or a leaked box.
    unsafe { gate.as_ref() }
}

/// From now on launches go through the gate of this process's container.
pub(crate) fn watch(tenant: &'static Tenant) {
    let region = tenant.region();
    progress::reset();
    thread::prepare();
    let own = ProcessGate {
        gate: Gate::new(region, tenant.slot_owner().slot(), &OPEN),
        host: Host::new(region),
    };
    // Release: the gate is whole. A parent's gate stays where it is.
    GATE.store(Box::into_raw(Box::new(own)), Ordering::Release);
    WORD.store(ptr::from_ref(region.grant().gate_word()).cast_mut(), Relaxed);
}

/// A context is going, and with it all that was recorded in it.
pub(crate) fn forget_context(context: CUcontext) {
    if captures::context_gone() {
        markers::note_unknown_capture();
    }
    if let Some(own) = gate() {
        progress::forget(context);
        own.gate.forget_context(ContextKey(context.0));
    }
}

/// Whether nothing has changed since this process last looked.
///
/// Relaxed: an open gate orders nothing; a launch finds out sooner or later that it is not open any
/// more.
#[inline(always)]
pub(crate) fn is_open() -> bool {
    word() == OPEN.load(Relaxed)
}

/// Whether the budget of the thread covers the launch; it is charged then. Not while anything is
/// captured: a captured launch is not executed, and whether this one is, only the driver knows.
#[inline(always)]
pub(crate) fn spend(launch: &Launch) -> bool {
    // SAFETY: null, or this thread's own part, which stays until it ends.
    let thread = unsafe { thread::current().as_ref() };
    !captures::any()
        && thread.is_some_and(|thread| thread.spend(word(), launch.kernel, launch.stream()))
}

/// What a kernel, or whatever is launched under that name, costs is not known any more.
pub(crate) fn forget_cost(kernel: Kernel) {
    if let Some(own) = gate() {
        own.gate.forget_cost(kernel);
    }
}

/// Makes the call when its time has come.
#[cold]
#[inline(never)]
pub(crate) fn enter(launch: Launch, call: impl FnOnce() -> CUresult) -> CUresult {
    let admitted = boundary::or(None, || before_launch(&launch));
    let answer = call();
    log_answer(answer);
    if let Some(admitted) = admitted {
        boundary::or((), || admitted.after_launch(answer == CUresult::SUCCESS));
    }
    answer
}

/// Not inlined into each kind of launch.
#[inline(never)]
fn log_answer(answer: CUresult) {
    debug!(result = answer.0, "driver called to launch");
}

/// Makes a call that launches on several GPUs. The first GPU's turn is waited for, in the order in
/// which the monitor calls turns together; on the others it goes without, since it is on its way on
/// the first.
#[cold]
#[inline(never)]
pub(crate) fn enter_all(
    launches: impl Iterator<Item = Launch>,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let admitted = boundary::or(Vec::new(), || {
        let tenant = process::tenant();
        let mut launches: Vec<_> = launches.collect();
        let gpu = |launch: &Launch| Some(LaunchContext::of(tenant?, launch)?.gpu);
        launches.sort_by_cached_key(gpu);
        launches.iter().filter_map(before_launch).collect()
    });
    let answer = call();
    boundary::or((), || {
        admitted.into_iter().for_each(|admitted| admitted.after_launch(answer == CUresult::SUCCESS))
    });
    answer
}

/// Launches that the thread has waited for.
#[derive(Clone, Copy)]
pub(crate) enum Synchronized {
    /// All in the current context.
    Current,
    /// All in this context.
    Context(CUcontext),
    /// Those into a stream of the current context.
    Stream(CUstream, DefaultStream),
}

/// The thread has waited for launches of its own, and all of them have run.
#[inline]
pub(crate) fn after_synchronize(synchronized: Synchronized) {
    if !is_open() {
        boundary::or((), || report_completion(synchronized));
    }
}

#[cold]
#[inline(never)]
fn report_completion(synchronized: Synchronized) {
    let (Some(own), Some(tenant)) = (gate(), process::tenant()) else { return };
    // SAFETY: null, or this thread's own part, which stays until it ends.
    let Some(thread) = (unsafe { thread::current().as_ref() }) else { return };
    if !own.gate.wants_completion(thread) {
        return;
    }
    let mut current = CUcontext::NULL;
    // SAFETY: the handle is writable.
    if accepted(unsafe { driver::cuCtxGetCurrent(&raw mut current) }).is_err() || current.is_null()
    {
        return;
    }
    let stream = match synchronized {
        Synchronized::Current => None,
        Synchronized::Context(context) if context == current || context.is_null() => None,
        // Its events are asked with it current.
        Synchronized::Context(_) => return,
        Synchronized::Stream(stream, default) => {
            Some(Stream { handle: stream.0, per_thread: default == DefaultStream::PerThread })
        }
    };
    let markers = Markers { context: current, time_scale: tenant.region().time_scale() };
    own.gate.after_synchronize(thread, (ContextKey(current.0), stream), &markers, &own.host);
}

/// A launch that is metered.
struct MeteredLaunch {
    own: &'static ProcessGate,
    thread: &'static Thread,
    context: LaunchContext,
    markers: Markers,
    admitted: Admitted,
}

impl MeteredLaunch {
    fn after_launch(self, accepted: bool) {
        let Self { own, thread, context, markers, admitted } = self;
        context.with_current(|| {
            own.gate.after_launch(thread, admitted, accepted, &markers, &own.host)
        });
    }
}

/// Waits at the gate. None: the launch is not metered.
fn before_launch(launch: &Launch) -> Option<MeteredLaunch> {
    let own = gate()?;
    let tenant = process::tenant()?;
    let context = LaunchContext::of(tenant, launch)?;
    // SAFETY: this thread's own part, which stays until it ends.
    let thread = unsafe { &*thread::own() };
    let markers = Markers { context: context.handle, time_scale: tenant.region().time_scale() };
    let launch = gate::Launch {
        kernel: launch.kernel,
        stream: launch.stream(),
        context: ContextKey(context.handle.0),
        gpu: context.gpu,
        programmatic: launch.is_programmatic(),
        variable_cost: launch.variable_cost,
    };
    let (gpu, stream, handle) = (context.gpu.get(), launch.stream.handle, context.handle.0);
    debug!(gpu, "launch into stream {stream:#x} of context {handle:#x} is at the gate");
    let admitted =
        context.with_current(|| own.gate.before_launch(thread, launch, &markers, &own.host));
    debug!(metered = admitted.is_some(), "launch admitted");
    let admitted = admitted?;
    Some(MeteredLaunch { own, thread, context, markers, admitted })
}

/// Where a launch runs.
struct LaunchContext {
    handle: CUcontext,
    gpu: DeviceIndex,
    /// The context is not the current one.
    elsewhere: bool,
}

impl LaunchContext {
    /// The current context, or that of the launch's stream. None: the driver will refuse the
    /// launch, or it is on a GPU that is not shared.
    fn of(tenant: &Tenant, launch: &Launch) -> Option<Self> {
        let mut current = CUcontext::NULL;
        // SAFETY: the handle is writable.
        accepted(unsafe { driver::cuCtxGetCurrent(&raw mut current) }).ok()?;
        let named = launch.by_stream.then(|| Order::context_of(launch.stream)).flatten();
        let handle = named.unwrap_or(current);
        if handle.is_null() {
            return None;
        }
        let elsewhere = handle != current;
        let known = tenant.contexts().find(ContextId(handle.0));
        let charged = known.or_else(|| if elsewhere { None } else { current::current(tenant) })?;
        Some(Self { handle, gpu: charged.gpu(), elsewhere })
    }

    /// Does something with the context current: events are made in it.
    fn with_current<T>(&self, what: impl FnOnce() -> T) -> T {
        // SAFETY: the context is the driver's word.
        let pushed = self.elsewhere
            && unsafe { driver::cuCtxPushCurrent_v2(self.handle) } == CUresult::SUCCESS;
        let done = what();
        if pushed {
            let mut popped = CUcontext::NULL;
            // SAFETY: the handle is writable; what was pushed is on top.
            let _ = unsafe { driver::cuCtxPopCurrent_v2(&raw mut popped) };
        }
        done
    }
}

#[inline(always)]
fn word() -> u32 {
    let word = WORD.load(Relaxed);
    // SAFETY: a static, or a word of a page that stays mapped as long as the process lives, and in
    // its children.
    unsafe { &*word }.load(Relaxed)
}
