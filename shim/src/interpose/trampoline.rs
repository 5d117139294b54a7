//! The jump through `dlsym` and similar functions.
//!
//! The loader identifies the caller by the return address: `RTLD_NEXT`, `RTLD_DEFAULT`, the
//! caller's RUNPATH and its namespace depend on it. So a replacement must not *call* the real
//! function; it must jump to it with the caller's stack and registers unchanged. Rust has no
//! guaranteed tail call, so a few instructions save the arguments where a Rust function can change
//! them, call it, restore them, and jump.

use core::ffi::c_void;

/// Arguments of the program's call of a replaced function, under that function's contract: only a
/// trampoline makes them. The real function gets what is written here.
#[repr(C)]
pub(super) struct Arguments {
    pub(super) first: usize,
    pub(super) second: usize,
    pub(super) third: usize,
    /// The return address, in the caller's object. Not to be written.
    pub(super) caller: usize,
}

/// Where a trampoline continues.
#[repr(C)]
pub(super) struct Exit {
    /// The function to jump to; null: return to the caller.
    target: *const c_void,
    /// The caller's result if there is no target.
    answer: *mut c_void,
}

impl Exit {
    pub(super) fn jump(target: *const c_void) -> Exit {
        Exit { target, answer: core::ptr::null_mut() }
    }

    pub(super) fn answer(answer: *mut c_void) -> Exit {
        Exit { target: core::ptr::null(), answer }
    }
}

/// Exports `$name`, which calls `$choose(&mut Arguments) -> Exit` and continues where that says. It
/// has the contract of the loader's function of that name. It preserves the first three integer
/// arguments, which is all that these functions take.
macro_rules! trampoline {
    ($(#[$doc:meta])* $name:ident, $choose:path) => {
        $(#[$doc])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                // Room for three arguments below the return address, and alignment of the stack.
                "sub rsp, 24",
                ".cfi_def_cfa_offset 32",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov rdi, rsp",
                "call {choose}", // rax: target, rdx: answer
                "mov r11, rdx",
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rdx, [rsp + 16]",
                "add rsp, 24",
                ".cfi_def_cfa_offset 8",
                "test rax, rax",
                "je 2f",
                "jmp rax",
                "2:",
                "mov rax, r11",
                "ret",
                ".cfi_endproc",
                choose = sym $choose,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "stp x0, x1, [sp, #-32]!",
                ".cfi_def_cfa_offset 32",
                "stp x2, x30, [sp, #16]",
                ".cfi_offset x30, -8",
                "mov x0, sp",
                "bl {choose}", // x0: target, x1: answer
                "mov x16, x0",
                "mov x17, x1",
                "ldp x2, x30, [sp, #16]",
                "ldp x0, x1, [sp], #32",
                ".cfi_def_cfa_offset 0",
                ".cfi_restore x30",
                "cbz x16, 2f",
                "br x16",
                "2:",
                "mov x0, x17",
                "ret",
                ".cfi_endproc",
                choose = sym $choose,
            );
        }
    };
}
pub(super) use trampoline;
