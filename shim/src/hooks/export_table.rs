//! The driver's private tables.

use cgpu_abi::types::{CUresult, CUuuid, c_void};
use cgpu_memory::Uuid;

use crate::{driver, process};

hooks! { call;
    // Returns the vendor's table unchanged, and counts it by UUID: calls of its functions are not
    // seen.
    cuGetExportTable(export_table: *mut *const c_void, export_table_id: *const CUuuid) => {
        let answer = call();
        if answer == CUresult::SUCCESS && !export_table_id.is_null() {
            // SAFETY: not null, and the driver has read it.
            process::count_export_table(Uuid(unsafe { export_table_id.read() }.bytes));
        }
        answer
    };
}
