/* SPDX-License-Identifier: Apache-2.0
 *
 * cgpu.h - the shared memory between a container and the host's monitor. This header is normative.
 * shm/src/layout.rs is the same layout in Rust; a test compiles this file and compares all offsets.
 *
 * A container is one directory (CGPU_DIR; inside the container /run/cgpu by default):
 *
 *     use      written by the container's processes, read (never mapped) by the monitor
 *     grant    written by the monitor, mapped read-only by the container's processes
 *     limits   text, optional: the container's limits (see docs/internals/files.md)
 *     doorbell FIFO, optional: one byte wakes the monitor; 'T' says that `use` was tampered with
 *     refused  text, optional: why the shim refused to start
 *
 * Multi-byte fields are in the host's byte order and naturally aligned. A field marked ATOMIC is
 * only accessed by single aligned loads, stores or read-modify-writes of its own width. Inodes
 * never change: a file is created without a name, filled, and linked into place. Its space is
 * allocated up front and it is never resized.
 *
 * Times are CLOCK_MONOTONIC in nanoseconds and memory is in bytes unless a field says otherwise.
 */
#ifndef CGPU_H
#define CGPU_H

#include <stddef.h>
#include <stdint.h>

#define CGPU_LAYOUT_VERSION 4u
#define CGPU_USE_MAGIC 0x55504743u   /* "CGPU" */
#define CGPU_GRANT_MAGIC 0x47504743u /* "CGPG" */

#define CGPU_GPUS 16u     /* GPUs of one container */
#define CGPU_SLOTS 256u   /* processes of one container */
#define CGPU_COUNTERS 48u /* counted reasons per process */
#define CGPU_INTERVALS 7u /* published busy intervals per process and GPU */
#define CGPU_NAME 64u     /* bytes of a container's name, with the closing zero */
#define CGPU_EXPORT_TABLES 16u     /* private tables of the driver that are counted by name */
#define CGPU_UNKNOWN_FUNCTIONS 8u  /* functions of the driver that are counted by name */
#define CGPU_DEVICES 56u  /* devices that the monitor can list: 8 GPUs of 7 MIG instances each */

/* Liveness: a running process holds an open-file-description lock on byte CGPU_LOCK_BASE + slot of
 * `use`. */
#define CGPU_LOCK_BASE (UINT64_C(1) << 40)
/* The same kind of lock on this byte serializes the creation and the registration of GPUs. */
#define CGPU_LOCK_REGION (CGPU_LOCK_BASE - 1)

/* ---- file `use` ------------------------------------------------------------------------------ */

/* A GPU of the container. It is registered by UUID under CGPU_LOCK_REGION and then counted.
 * `total`, `limit` and `ordinal` are rewritten only by a process that registers while no other one
 * lives. `withdrawn`, `context`, `agreed` and the locks change at any time. */
struct cgpu_gpu {
    uint8_t uuid[16];
    uint64_t total;      /* the GPU's memory, as reported by NVML */
    uint64_t limit;      /* the limit at registration, 0: none. A grant.limit other than 0 wins */
    uint32_t ordinal;    /* the GPU's index in NVIDIA_VISIBLE_DEVICES */
    uint32_t reserved0;
    uint64_t withdrawn;  /* ATOMIC: bytes taken off the ledger that `returned` may count */
    uint64_t context;    /* ATOMIC: last measured size of a context on this GPU; 0: not known */
    uint64_t agreed;     /* ATOMIC: not 0: two contexts in a row measured the size in `context` */
    uint32_t lock;       /* ATOMIC futex: serializes charges; 0: free, else a lock word (below) */
    uint32_t learning;   /* ATOMIC futex, as `lock`: held while a process creates the container's
                          * first context here and measures its size */
    uint32_t reserved3[14];
};

/* Lock word: bit 31 says that a thread sleeps, bits 30..8 are the low bits of the owner slot's
 * generation, bits 7..0 are the slot. An owner's word is never zero, because generations start at 1
 * and their low 23 bits skip 0. */
#define CGPU_LOCK_SLEEPERS UINT32_C(0x80000000)

/* How often something happened whose name is known to the processes alone. `name` is text, padded
 * with spaces. Its words are set one after another, each once, from 0: so an entry belongs to one
 * name, and one with a zero word is unfinished. Names beyond the last entry but one are counted in
 * the last one, as "others". */
struct cgpu_named_count {
    uint64_t name[7];    /* ATOMIC */
    uint64_t count;      /* ATOMIC */
};

struct cgpu_use_header {
    uint32_t version;    /* ATOMIC, written last (release): CGPU_LAYOUT_VERSION; 0: not ready */
    uint32_t magic;      /* CGPU_USE_MAGIC */
    uint64_t size;       /* of the file */
    uint32_t gpus;       /* ATOMIC: registered GPUs (release after the record is filled) */
    uint32_t high_water; /* ATOMIC: slots at or above were never used */
    uint64_t created;    /* CLOCK_REALTIME */
    char name[CGPU_NAME];
    uint32_t time_scale; /* host time per device time, in thousandths; 0: 1000, as on a real GPU */
    uint8_t reserved0[28];
    /* Private tables that the driver gave to processes (cuGetExportTable), by UUID. */
    struct cgpu_named_count export_table[CGPU_EXPORT_TABLES];
    /* Functions of the processes' driver that allocate, by their names, and that the processes'
     * release of cgpu does not know. Counted when the driver is initialized. */
    struct cgpu_named_count unknown_function[CGPU_UNKNOWN_FUNCTIONS];
    uint8_t reserved[384];
    struct cgpu_gpu gpu[CGPU_GPUS];
};

/* Slot states. live -> draining when the process is found to have exited. draining -> free when its
 * memory has left the GPU, or -> orphan when other processes may hold memory that it exported.
 * orphan -> free when no process holds that memory any more. */
#define CGPU_SLOT_FREE 0u
#define CGPU_SLOT_LIVE 1u
#define CGPU_SLOT_DRAINING 2u
#define CGPU_SLOT_ORPHAN 3u

/* Exported handles. A handle that is valid only while its exporter holds the memory (legacy IPC, a
 * pool pointer) has one of the bits 0..62, by a hash of its bytes. A process that opens the handle
 * sets that bit in its own `opened_handles`. Bit 63: exported by a route on which holders cannot be
 * seen (a file descriptor, a fabric handle, another process's multicast object). */
#define CGPU_EXPORTED_UNSEEN (UINT64_C(1) << 63)

struct cgpu_slot {
    uint64_t state;      /* ATOMIC: generation << 8 | CGPU_SLOT_* */
    uint32_t pid;        /* in the container's PID namespace; for display, never to send signals */
    uint32_t reserved0;
    uint64_t since;      /* ATOMIC: when it went live, was found exited, or became an orphan */
    char comm[16];
    uint64_t acked;      /* ATOMIC: the gate word that this process acknowledged last */
    uint64_t opened_handles;   /* ATOMIC: bits of the handles that this process has open */
    uint64_t exported_handles; /* ATOMIC: bits of the handles that this process exported, and
                                * CGPU_EXPORTED_UNSEEN */
    uint32_t counter[CGPU_COUNTERS]; /* ATOMIC: counts by reason (see shm/src/reason.rs) */
};

struct cgpu_interval {
    uint64_t start;
    uint64_t end;
};

/* A cell's `held`. Bits 42..0: bytes in use. Bits 62..43: cached bytes, in steps of 512, which the
 * process has freed and may take again without the GPU's lock while bit 63 is set. Other processes
 * count cached bytes as in use; one that needs them clears the cached bytes and bit 63. */
#define CGPU_HELD_USED(held) ((held) & ((UINT64_C(1) << 43) - 1))
#define CGPU_HELD_CACHED(held) ((((held) & ~CGPU_HELD_OPEN) >> 43) * 512)
#define CGPU_HELD_OPEN (UINT64_C(1) << 63)

/* One process's use of one GPU: accounting, then GPU time. */
struct cgpu_cell {
    uint64_t held;       /* ATOMIC: CGPU_HELD_*; includes bytes of calls still in the driver */
    uint64_t implicit;   /* ATOMIC: bytes of contexts, modules and slack; count against the limit */
    uint64_t peak;       /* ATOMIC: greatest used + implicit */
    uint64_t limit_word; /* ATOMIC: limit + (unaccounted_epoch << 44) when `held` was opened */
    uint64_t waiting;    /* ATOMIC: threads that wait at the gate */
    uint32_t creating;   /* ATOMIC: calls in the driver that may change implicit memory */
    uint32_t implicit_epoch; /* ATOMIC: counts frees of implicit memory; an `unaccounted` of another
                              * epoch does not apply */
    uint32_t charges;    /* ATOMIC: changes with every charge (two at once may change it once) */
    uint32_t checkpointed; /* ATOMIC: not 0: the process is checkpointed and only its `exported`
                            * bytes are on the GPU; written by other processes */
    uint64_t exported;   /* ATOMIC: bytes in use that others may hold; they outlive the process */

    uint64_t busy;       /* ATOMIC: measured GPU time, never falls */
    uint64_t inflight;   /* ATOMIC: estimated GPU time of launches that are not measured yet */
    uint64_t launches;   /* ATOMIC: measured launches, never falls */
    uint64_t active;     /* ATOMIC: time of the last launch that took the slow path */
    uint64_t turn;       /* ATOMIC: the turn word that the process launches under */
    uint64_t first;      /* ATOMIC: start of this turn's first work; 0: none yet */
    uint64_t last;       /* ATOMIC: end of the last measured work */
    uint64_t spent;      /* ATOMIC: GPU time of the turn in `turn`, measured and in flight */

    uint64_t sequence;   /* ATOMIC: intervals published; interval n is at n % CGPU_INTERVALS */
    struct cgpu_interval interval[CGPU_INTERVALS];
    uint64_t ends;       /* ATOMIC: predicted end of the work in flight */
};

struct cgpu_use {
    struct cgpu_use_header header;
    struct cgpu_slot slot[CGPU_SLOTS];
    struct cgpu_cell cell[CGPU_GPUS][CGPU_SLOTS];
};

/* ---- file `grant` ---------------------------------------------------------------------------- */

/* Turn states, the low byte of cgpu_grant_gpu.turn. The rest is an epoch that only grows. */
#define CGPU_TURN_OPEN 0u  /* uncontended, native policy or no monitor: launch without metering */
#define CGPU_TURN_YOURS 1u /* contended, this container's turn: launch, metered and bounded */
#define CGPU_TURN_WAIT 2u  /* contended, another container's turn: wait until the gate changes */

struct cgpu_grant_gpu {
    uint64_t turn;       /* ATOMIC: epoch << 8 | CGPU_TURN_* */
    uint64_t budget;     /* ATOMIC: GPU time of this turn */
    uint64_t until;      /* ATOMIC: when the turn is expected to end */
    uint64_t limit;      /* ATOMIC: memory limit; 0: as registered in `use` */
    uint32_t notify_slot; /* ATOMIC: slot that rings the doorbell when its work runs out;
                           * CGPU_SLOTS: none */
    uint32_t policy;     /* ATOMIC: 0..5 */
    uint32_t weight;     /* ATOMIC */
    uint32_t share;      /* ATOMIC: configured share in thousandths of a percent, for display */
    uint64_t busy;       /* ATOMIC: GPU time in the monitor's accounting, for display */
    uint32_t beside;     /* ATOMIC: other containers whose work runs at the same time */
    uint32_t unaccounted_epoch; /* ATOMIC: changes after an `unaccounted` of the GPU has risen
                                 * (release); cached bytes are then compared with the limit again */
    uint64_t bound;      /* ATOMIC: limit of predicted work in flight; 0: 500 us in a turn, none
                          * while open */
    uint64_t confirmed[4]; /* ATOMIC, one bit per slot: NVML confirms the process's implicit +
                            * `unaccounted`; cleared before an unconfirmed delta is stored */
    uint64_t returned;   /* ATOMIC: `withdrawn` + exported bytes that have left the GPU; at or below
                          * `withdrawn`: none */
    uint32_t measured;   /* ATOMIC: share of the last second in thousandths of a percent, + 1;
                          * 0: not metered; with CGPU_ESTIMATE: an estimate. For display */
    uint32_t reserved0[3];
};
#define CGPU_ESTIMATE (1u << 31)

/* A device of the host as NVML reports it to the monitor: a GPU or a MIG instance. It saves a
 * container's processes from starting NVML. */
struct cgpu_device {
    uint8_t uuid[16];
    uint32_t total;      /* ATOMIC: its memory, in steps of CGPU_DEVICE_STEP */
    uint32_t free;       /* ATOMIC: free memory at `grant.sampled`, in the same steps;
                          * CGPU_DEVICE_UNKNOWN: not known */
    uint32_t order;      /* ATOMIC: NVML's index << 4 | MIG instance on its GPU, from 1 (0: the
                          * whole GPU) | CGPU_DEVICE_PARTITIONED */
    uint32_t reserved0;
};
#define CGPU_DEVICE_STEP 4096
#define CGPU_DEVICE_UNKNOWN UINT32_C(0xffffffff)
/* In `order`: MIG is enabled, so no program computes on the GPU itself. Its instances are separate
 * devices. */
#define CGPU_DEVICE_PARTITIONED UINT32_C(0x80000000)

/* grant.devices. Low 8 bits: how many entries of `device` are valid; 0: not known, or being
 * rewritten. The other bits change whenever the list does. */
#define CGPU_DEVICES_COUNT(word) ((word) & 0xff)

/* grant.process: low half of the slot's generation << 32 | host process id; 0: not known. */
#define CGPU_PROCESS_HOST_PID(word) ((uint32_t)(word))

/* grant.unaccounted: what NVML measures of a process beyond its cell (negative: less than that).
 * Bits 39..0: steps of 512 bytes, two's complement. Bits 47..40: low bits of the cell's
 * `implicit_epoch`. Bits 63..48: low bits of the slot's generation. The figure applies while both
 * are unchanged, and takes away at most the cell's `implicit`. */
#define CGPU_UNACCOUNTED_STEPS(word) ((int64_t)((word) << 24) >> 24)
#define CGPU_UNACCOUNTED_STEP 512

struct cgpu_grant {
    uint32_t version;    /* ATOMIC, written last (release) */
    uint32_t magic;      /* CGPU_GRANT_MAGIC */
    uint64_t size;
    uint64_t heartbeat;  /* ATOMIC: changes at least every 250 ms while a monitor runs; the reader
                          * times it */
    uint64_t monitor;    /* ATOMIC: identifies the monitor's run; 0: no monitor has written here */
    uint64_t reserved0[4];
    uint32_t gate;       /* ATOMIC futex: changes whenever anything for this container's launches
                          * does; 0: open */
    uint32_t reserved1[15];
    uint32_t notify_requested; /* ATOMIC: not 0: write one byte to `doorbell` */
    uint32_t devices;    /* ATOMIC, written after the list (release): CGPU_DEVICES_COUNT */
    uint64_t sampled;    /* ATOMIC, written after every `free` (release): time of NVML's figures;
                          * 0: never */
    uint64_t pid_namespace; /* ATOMIC: inode of the monitor's PID namespace; a process in the same
                             * one sees the same devices. 0: not known */
    uint8_t reserved2[104];
    struct cgpu_device device[CGPU_DEVICES];
    struct cgpu_grant_gpu gpu[CGPU_GPUS];
    uint64_t drained[CGPU_SLOTS]; /* ATOMIC: state word of a draining slot whose memory is gone */
    uint64_t process[CGPU_SLOTS]; /* ATOMIC: the slot's process on the host: CGPU_PROCESS_* */
    uint64_t unaccounted[CGPU_GPUS][CGPU_SLOTS]; /* ATOMIC: CGPU_UNACCOUNTED_* */
};

/* ---- the layout, checked --------------------------------------------------------------------- */

#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define CGPU_ASSERT(what) _Static_assert(what, #what)
#elif defined(__cplusplus) && __cplusplus >= 201103L
#define CGPU_ASSERT(what) static_assert(what, #what)
#else
#define CGPU_ASSERT(what)
#endif

CGPU_ASSERT(sizeof(struct cgpu_gpu) == 128);
CGPU_ASSERT(offsetof(struct cgpu_gpu, lock) == 64);
CGPU_ASSERT(sizeof(struct cgpu_use_header) == 4096);
CGPU_ASSERT(sizeof(struct cgpu_named_count) == 64);
CGPU_ASSERT(offsetof(struct cgpu_use_header, export_table) == 128);
CGPU_ASSERT(offsetof(struct cgpu_use_header, unknown_function) == 1152);
CGPU_ASSERT(offsetof(struct cgpu_use_header, gpu) == 2048);
CGPU_ASSERT(sizeof(struct cgpu_slot) == 256);
CGPU_ASSERT(offsetof(struct cgpu_slot, counter) == 64);
CGPU_ASSERT(sizeof(struct cgpu_cell) == 256);
CGPU_ASSERT(offsetof(struct cgpu_cell, busy) == 64);
CGPU_ASSERT(offsetof(struct cgpu_cell, sequence) == 128);
CGPU_ASSERT(offsetof(struct cgpu_use, slot) == 4096);
CGPU_ASSERT(offsetof(struct cgpu_use, cell) == 69632);
CGPU_ASSERT(sizeof(struct cgpu_use) == 1118208);
CGPU_ASSERT(sizeof(struct cgpu_grant_gpu) == 128);
CGPU_ASSERT(offsetof(struct cgpu_grant, gate) == 64);
CGPU_ASSERT(offsetof(struct cgpu_grant, notify_requested) == 128);
CGPU_ASSERT(sizeof(struct cgpu_device) == 32);
CGPU_ASSERT(offsetof(struct cgpu_grant, device) == 256);
CGPU_ASSERT(offsetof(struct cgpu_grant, gpu) == 2048);
CGPU_ASSERT(offsetof(struct cgpu_grant, drained) == 4096);
CGPU_ASSERT(offsetof(struct cgpu_grant, unaccounted) == 8192);
CGPU_ASSERT(sizeof(struct cgpu_grant) == 40960);

#endif
