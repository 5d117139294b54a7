//! Connects the gate ([`cgpu_launch::gate`]) to the driver.
//!
//! The monitor changes the container's gate word when something changes for its launches, and every
//! few milliseconds while tenants compete for a GPU. A launch compares the word with the one under
//! which every GPU is open: two loads and a branch. If they differ, the thread may have a budget
//! ([`spend`]); otherwise it takes the slow path ([`enter`]).
//!
//! | module | contents |
//! |---|---|
//! | [`thread`] | each thread's own state of the gate |
//! | [`markers`] | what the gate puts on streams, and its driver queries |
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

use self::markers::Markers;
use crate::order::Order;
use crate::{boundary, captures, current, driver, process};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    /// The stream as the program named it.
    pub(crate) stream: CUstream,
    /// Which stream the null handle means.
    pub(crate) default: DefaultStream,
    /// The record of the launch's attributes, or null.
    pub(crate) config: *const CUlaunchConfig,
    /// The stream decides the context, which may not be the current one.
    pub(crate) by_stream: bool,
    /// Its cost may differ from one launch to the next, so each takes the slow path.
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

    /// Makes a launch from the program's record. A null record is left for the driver to refuse.
    ///
    /// # Safety
    ///
    /// `config` is null or points to the program's record of this launch.
    #[inline(always)]
    pub(crate) unsafe fn configured(
        config: *const CUlaunchConfig,
        function: CUfunction,
        flavour: Launch,
    ) -> Launch {
        // SAFETY: the caller guarantees a null pointer or a readable record.
        let Some(record) = (unsafe { config.as_ref() }) else { return flavour };
        let grid = [record.grid_dim_x, record.grid_dim_y, record.grid_dim_z];
        let block = [record.block_dim_x, record.block_dim_y, record.block_dim_z];
        let kernel = Kernel::new(function.0, grid, block);
        Launch { kernel, stream: record.stream, config, ..flavour }
    }

    #[inline(always)]
    pub(crate) fn copy(bytes: usize, stream: CUstream, flavour: Launch) -> Launch {
        Launch { kernel: Kernel::copy(bytes as u64), stream, by_stream: true, ..flavour }
    }

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

    /// Returns whether it may begin before its predecessor on the stream has ended. No other
    /// attribute restricts where markers may be placed.
    fn is_programmatic(&self) -> bool {
        // SAFETY: null, or the program's record, which it keeps until its launch call returns.
        let Some(record) = (unsafe { self.config.as_ref() }) else { return false };
        if record.attrs.is_null() {
            return false;
        }
        // SAFETY: the record says that `attrs` has that many elements.
        let attributes = unsafe { slice::from_raw_parts(record.attrs, record.num_attrs as usize) };
        attributes.iter().any(|attribute| {
            attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
                // SAFETY: this attribute's value is this member of the union.
                && unsafe { attribute.value.programmatic_stream_serialization_allowed } != 0
        })
    }
}

/// The gate word if no monitor writes one. It never changes.
static UNTOUCHED: AtomicU32 = AtomicU32::new(0);

/// The gate word that launches read: in the mapped `grant` page, or [`UNTOUCHED`]. Never null.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const UNTOUCHED).cast_mut());

/// The gate word under which this process has found every GPU open.
static OPEN: AtomicU32 = AtomicU32::new(0);

/// The gate of this process; null: launches are not gated.
static GATE: AtomicPtr<ProcessGate> = AtomicPtr::new(ptr::null_mut());

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
    // Acquire: the gate is initialised.
    let gate = GATE.load(Ordering::Acquire);
    // SAFETY: null, or a box that `watch` leaked.
    unsafe { gate.as_ref() }
}

/// Sends later launches through the gate of this process's container.
pub(crate) fn install(tenant: &'static Tenant) {
    let region = tenant.region();
    progress::reset();
    thread::create_key();
    let own = ProcessGate {
        gate: Gate::new(region, tenant.slot_owner().slot(), &OPEN),
        host: Host::new(region),
    };
    // Release: the gate is initialised. After a fork, the parent's gate is leaked.
    GATE.store(Box::into_raw(Box::new(own)), Ordering::Release);
    WORD.store(ptr::from_ref(region.grant().gate_word()).cast_mut(), Relaxed);
}

pub(crate) fn forget_context(context: CUcontext) {
    if captures::context_destroyed() {
        markers::note_unknown_capture();
    }
    if let Some(own) = gate() {
        progress::forget(context);
        own.gate.forget_context(ContextKey(context.0));
    }
}

/// Returns whether nothing has changed since this process last looked.
///
/// Relaxed: an open gate orders nothing, and a launch may notice a change late.
#[inline(always)]
pub(crate) fn is_open() -> bool {
    word() == OPEN.load(Relaxed)
}

/// Charges the launch to the thread's budget if that covers it. Not while anything is captured: a
/// captured launch is not executed, and only the driver knows whether this one is.
#[inline(always)]
pub(crate) fn spend(launch: &Launch) -> bool {
    // SAFETY: null, or this thread's own state, which lives until the thread ends.
    let thread = unsafe { thread::current().as_ref() };
    !captures::any()
        && thread.is_some_and(|thread| thread.spend(word(), launch.kernel, launch.stream()))
}

/// Forgets the cost of a kernel, or of whatever is launched under that handle.
pub(crate) fn forget_cost(kernel: Kernel) {
    if let Some(own) = gate() {
        own.gate.forget_cost(kernel);
    }
}

/// Makes the driver's call when the launch is admitted.
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

/// A function of its own, so that it is not inlined into each kind of launch.
#[inline(never)]
fn log_answer(answer: CUresult) {
    debug!(result = answer.0, "driver called to launch");
}

/// Makes a call that launches on several GPUs. It waits for the turn of the first GPU, in the order
/// in which the monitor grants turns together. It is not held on the others, because the process
/// then has work on the first.
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

/// Launches that the thread has synchronized with.
#[derive(Clone, Copy)]
pub(crate) enum Synchronized {
    Current,
    Context(CUcontext),
    /// Those in a stream of the current context.
    Stream(Order),
}

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
    // SAFETY: null, or this thread's own state, which lives until the thread ends.
    let Some(thread) = (unsafe { thread::current().as_ref() }) else { return };
    if !own.gate.wants_completion(thread) {
        return;
    }
    let Some(current) = current::current_handle() else { return };
    let stream = match synchronized {
        Synchronized::Current => None,
        Synchronized::Context(context) if context == current || context.is_null() => None,
        // Its events can only be queried while it is current.
        Synchronized::Context(_) => return,
        Synchronized::Stream(order) => Some(order.into()),
    };
    let markers = Markers { context: current, time_scale: tenant.region().time_scale() };
    own.gate.after_synchronize(thread, (ContextKey(current.0), stream), &markers, &own.host);
}

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

/// Waits at the gate. Returns none if the launch is not metered.
fn before_launch(launch: &Launch) -> Option<MeteredLaunch> {
    let own = gate()?;
    let tenant = process::tenant()?;
    let context = LaunchContext::of(tenant, launch)?;
    // SAFETY: this thread's own state, which lives until the thread ends.
    let thread = unsafe { &*thread::get_or_create() };
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

struct LaunchContext {
    handle: CUcontext,
    gpu: DeviceIndex,
    elsewhere: bool,
}

impl LaunchContext {
    /// Returns the context of the launch's stream, or the current one. None: the driver will refuse
    /// the launch, or its GPU is not shared.
    fn of(tenant: &Tenant, launch: &Launch) -> Option<Self> {
        // SAFETY: the handle is writable.
        let current = driver::get(|current| unsafe { driver::cuCtxGetCurrent(current) }).ok()?;
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

    /// Runs `what` with the context current, because events are created in the current context.
    fn with_current<T>(&self, what: impl FnOnce() -> T) -> T {
        // SAFETY: the driver has given the handle for the current thread or for the launch's
        // stream.
        let pushed = self.elsewhere
            && unsafe { driver::cuCtxPushCurrent_v2(self.handle) } == CUresult::SUCCESS;
        let done = what();
        if pushed {
            current::pop();
        }
        done
    }
}

#[inline(always)]
fn word() -> u32 {
    let word = WORD.load(Relaxed);
    // SAFETY: a static, or a word of a page that stays mapped in this process and its children.
    unsafe { &*word }.load(Relaxed)
}
