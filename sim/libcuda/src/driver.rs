//! State of the driver in this process: the machine that it drives, and the objects behind handles.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cgpu_abi::types::*;
use cgpu_sim::machine::{SemaphoreId, StreamId};
use cgpu_sim::{GpuSpec, Machine};

use crate::answer::{Answer, Failure, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED};
use crate::array::Array;
use crate::capture;
use crate::context::{self, Context};
use crate::copy::Staging;
use crate::endpoint::Endpoints;
use crate::event::Event;
use crate::external::{Buffers, External};
use crate::function::Function;
use crate::graph::{Executable, GraphMemory, Graphs};
use crate::green::{Description, Green};
use crate::handle::Table;
use crate::host::HostMemory;
use crate::legacy::LowAddresses;
use crate::library::{Kernel, Library};
use crate::link::Linker;
use crate::module::Module;
use crate::pool::{Pool, Pools};
use crate::primary::Primary;
use crate::semaphore::Semaphore;
use crate::stream::Stream;
use crate::texture::View;
use crate::visible::{NO_GPU, Visible};

/// The initialised driver. There is one per process, from the first successful `cuInit`.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) machine: Machine,
    pub(crate) visible: Visible,
    /// One per GPU, in the machine's order.
    pub(crate) primaries: Vec<Primary>,
    pub(crate) contexts: Table<Context>,
    pub(crate) streams: Table<Stream>,
    pub(crate) events: Table<Event>,
    pub(crate) modules: Table<Module>,
    pub(crate) functions: Table<Function>,
    pub(crate) libraries: Table<Library>,
    pub(crate) kernels: Table<Kernel>,
    pub(crate) linkers: Table<Linker>,
    pub(crate) arrays: Table<Array>,
    pub(crate) views: Table<View>,
    pub(crate) pools: Table<Pool>,
    pub(crate) pooled: Mutex<Pools>,
    pub(crate) endpoints: Mutex<Endpoints>,
    pub(crate) greens: Table<Green>,
    pub(crate) descriptions: Table<Description>,
    /// Handles of physical memory that was created for tiles. A handle is never reused.
    pub(crate) tile_pools: Mutex<HashSet<CUmemGenericAllocationHandle>>,
    pub(crate) externals: Table<External>,
    pub(crate) buffers: Mutex<Buffers>,
    pub(crate) semaphores: Table<Semaphore>,
    /// Semaphores created through [`crate::foreign`].
    pub(crate) foreign: Table<SemaphoreId>,
    pub(crate) host: Mutex<HostMemory>,
    pub(crate) staging: Mutex<Staging>,
    pub(crate) low: Mutex<LowAddresses>,
    pub(crate) graphs: Mutex<Graphs>,
    pub(crate) executables: Table<Executable>,
    pub(crate) graph_memory: Mutex<GraphMemory>,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
/// Held while the driver starts, so that it is started once.
static STARTING: Mutex<()> = Mutex::new(());

impl Driver {
    /// Returns the driver, if it is initialised.
    pub(crate) fn get() -> Option<&'static Self> {
        DRIVER.get()
    }

    /// Initialises the driver, unless it is. Fails in a child forked from an initialised process.
    pub(crate) fn start() -> Answer {
        let _starting = lock(&STARTING);
        match DRIVER.get() {
            Some(driver) if driver.machine.is_inherited() => return Err(NOT_INITIALIZED),
            Some(_) => return Ok(()),
            None => {}
        }
        let machine = Machine::from_environment().map_err(|error| {
            eprintln!("cgpu-sim: {error}");
            Failure::from(error)
        })?;
        let visible = Visible::from_environment(machine.gpus());
        if visible.count() == 0 {
            return Err(NO_DEVICE);
        }
        let primaries = machine.gpus().iter().map(|_| Primary::default()).collect();
        let driver = Self {
            machine,
            visible,
            primaries,
            contexts: Table::default(),
            streams: Table::default(),
            events: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
            libraries: Table::default(),
            kernels: Table::default(),
            linkers: Table::default(),
            arrays: Table::default(),
            views: Table::default(),
            pools: Table::default(),
            pooled: Mutex::default(),
            endpoints: Mutex::default(),
            greens: Table::default(),
            descriptions: Table::default(),
            tile_pools: Mutex::default(),
            externals: Table::default(),
            buffers: Mutex::default(),
            semaphores: Table::default(),
            foreign: Table::default(),
            host: Mutex::default(),
            staging: Mutex::default(),
            low: Mutex::default(),
            graphs: Mutex::default(),
            executables: Table::default(),
            graph_memory: Mutex::default(),
        };
        driver.machine.mark_cuda_process()?;
        // Cannot fail: `DRIVER` is set under STARTING only.
        let _ = DRIVER.set(driver);
        Ok(())
    }

    /// Returns a GPU's index in the machine.
    pub(crate) fn gpu(&self, device: CUdevice) -> Answer<usize> {
        self.visible.gpu(device).ok_or(INVALID_DEVICE)
    }

    /// Returns the device as the program numbers it; `NO_GPU` if it is not visible.
    pub(crate) fn device(&self, gpu: usize) -> CUdevice {
        self.visible.device(gpu).unwrap_or(NO_GPU)
    }

    pub(crate) fn spec(&self, device: CUdevice) -> Answer<&GpuSpec> {
        Ok(&self.machine.gpus()[self.gpu(device)?])
    }

    pub(crate) fn current(&self) -> Answer<Arc<Context>> {
        context::current(self)
    }

    /// Returns the context of a handle; NULL is the current one.
    pub(crate) fn context(&self, handle: CUcontext) -> Answer<Arc<Context>> {
        if handle.is_null() { self.current() } else { context::find(self, handle) }
    }

    /// Returns the machine's stream and the context of a handle, default streams included. For
    /// calls that cannot be captured; others use [`capture::lane`].
    pub(crate) fn stream(
        &self,
        handle: CUstream,
        per_thread: bool,
    ) -> Answer<(StreamId, Arc<Context>)> {
        capture::refuse(self, handle, per_thread)
    }
}

/// Locks data that a panic cannot leave half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn count(number: impl TryInto<usize>) -> Answer<usize> {
    number.try_into().map_err(|_| INVALID_VALUE)
}
