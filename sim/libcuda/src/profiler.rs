//! Functions of the profiler; they do nothing.

use cgpu_abi::types::*;

use crate::answer::Answer;
use crate::argument::In;
use crate::call::Call;

pub(crate) fn cuProfilerInitialize(
    call: &Call,
    _config_file: In<c_char>,
    _output_file: In<c_char>,
    _output_mode: CUoutput_mode,
) -> Answer {
    call.driver()?;
    Ok(())
}

pub(crate) fn cuProfilerStart(call: &Call) -> Answer {
    call.driver()?;
    Ok(())
}
pub(crate) use cuProfilerStart as cuProfilerStop;
