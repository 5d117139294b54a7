//! Names and messages of results.

use cgpu_abi::nvml_types::nvmlReturn_t;
use cgpu_abi::types::CUresult;

#[test]
fn result_has_its_name_and_message() {
    assert_eq!(CUresult(2), CUresult::ERROR_OUT_OF_MEMORY);
    assert_eq!(CUresult(2).name().unwrap(), c"CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(CUresult(2).description().unwrap(), c"out of memory");
    assert_eq!(nvmlReturn_t(7).name().unwrap(), c"NVML_ERROR_INSUFFICIENT_SIZE");
    assert_eq!(nvmlReturn_t(7).description().unwrap(), c"Insufficient Size");
    assert!(CUresult::SUCCESS.is_success() && !CUresult::ERROR_NOT_READY.is_success());
}

#[test]
fn unknown_code_is_shown_as_its_number() {
    assert_eq!(CUresult(4711).name(), None);
    assert_eq!(CUresult(4711).description(), None);
    assert_eq!(format!("{:?}", CUresult(4711)), "CUresult(4711)");
    assert_eq!(CUresult::ERROR_NOT_SUPPORTED.to_string(), "CUDA_ERROR_NOT_SUPPORTED");
}

#[test]
fn codes_are_in_ascending_order() {
    assert!(CUresult::ALL.is_sorted_by_key(|result| result.0));
    assert!(nvmlReturn_t::ALL.is_sorted_by_key(|result| result.0));
}
