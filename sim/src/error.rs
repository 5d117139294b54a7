//! Errors of the simulator. The driver crates translate them to CUresult and nvmlReturn.

use core::fmt;

/// The error of a failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A variable is invalid. The message names it, what was expected and what it was.
    Settings(String),
    /// The segment file cannot be created, mapped or used. The message tells why.
    Segment(String),
    /// A table of the segment is full. Real drivers answer out of memory.
    Full(&'static str),
    /// The system refuses something that the simulation needs. The message names it.
    System(String),
    /// Not enough memory on the GPU.
    OutOfMemory,
    /// No such GPU.
    NoGpu,
    /// Not a context of this process.
    NoContext,
    /// Not a stream of this process.
    NoStream,
    /// Not an event of this process.
    NoEvent,
    /// The event was never recorded, or was made without timing.
    NotRecorded,
    /// Not the start of an allocation of this process, or a range that leaves its allocation.
    NoAllocation,
    /// Not a pool of this process.
    NoPool,
    /// Memory that was allocated for this process alone.
    NotShareable,
    /// A size or handle that is invalid for the call.
    Invalid(&'static str),
    /// A process is not in the state that the call requires.
    State(&'static str),
    /// The operation is not supported for this object.
    Unsupported(&'static str),
    /// The process is a forked child and the machine is its parent's. Real drivers answer
    /// not-initialised.
    Forked,
    /// A live process holds the segment's lock and does not run (stopped, or starved).
    Stuck(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings(message)
            | Self::Segment(message)
            | Self::System(message)
            | Self::Stuck(message) => f.write_str(message),
            Self::Full(table) => write!(f, "the simulated GPU holds no more {table}"),
            Self::OutOfMemory => f.write_str("the simulated GPU is out of memory"),
            Self::NoGpu => f.write_str("no such GPU"),
            Self::NoContext => f.write_str("not a context of this process"),
            Self::NoStream => f.write_str("not a stream of this process"),
            Self::NoEvent => f.write_str("not an event of this process"),
            Self::NotRecorded => f.write_str("the event has no recorded time"),
            Self::NoAllocation => f.write_str("not an allocation of this process"),
            Self::NoPool => f.write_str("not a memory pool of this process"),
            Self::NotShareable => f.write_str("memory that cannot be sent to other processes"),
            Self::Invalid(what) | Self::State(what) | Self::Unsupported(what) => f.write_str(what),
            Self::Forked => {
                f.write_str("this process was forked from the one that opened the simulated GPU")
            }
        }
    }
}

impl core::error::Error for Error {}
