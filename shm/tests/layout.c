/* Prints every constant, size and offset of include/cgpu.h, one per line, for tests/layout.rs. */
#include "../../include/cgpu.h"

#include <inttypes.h>
#include <stdio.h>

#define VALUE(name) printf(#name " %" PRIu64 "\n", (uint64_t)(name))
#define SIZE(type) printf(#type " %zu\n", sizeof(struct type))
#define FIELD(type, field)                                                            \
    printf(#type "." #field " %zu %zu\n", offsetof(struct type, field), \
           sizeof(((struct type *)0)->field))

int main(void)
{
    VALUE(CGPU_LAYOUT_VERSION);
    VALUE(CGPU_USE_MAGIC);
    VALUE(CGPU_GRANT_MAGIC);
    VALUE(CGPU_GPUS);
    VALUE(CGPU_SLOTS);
    VALUE(CGPU_COUNTERS);
    VALUE(CGPU_EXPORT_TABLES);
    VALUE(CGPU_UNKNOWN_FUNCTIONS);
    VALUE(CGPU_INTERVALS);
    VALUE(CGPU_NAME);
    VALUE(CGPU_DEVICES);
    VALUE(CGPU_DEVICE_STEP);
    VALUE(CGPU_ESTIMATE);
    VALUE(CGPU_DEVICE_UNKNOWN);
    VALUE(CGPU_DEVICE_PARTITIONED);
    VALUE(CGPU_LOCK_BASE);
    VALUE(CGPU_LOCK_REGION);
    VALUE(CGPU_LOCK_SLEEPERS);
    VALUE(CGPU_SLOT_FREE);
    VALUE(CGPU_SLOT_LIVE);
    VALUE(CGPU_SLOT_DRAINING);
    VALUE(CGPU_SLOT_ORPHAN);
    VALUE(CGPU_EXPORTED_UNSEEN);
    VALUE(CGPU_TURN_OPEN);
    VALUE(CGPU_TURN_YOURS);
    VALUE(CGPU_TURN_WAIT);

    SIZE(cgpu_gpu);
    FIELD(cgpu_gpu, uuid);
    FIELD(cgpu_gpu, total);
    FIELD(cgpu_gpu, limit);
    FIELD(cgpu_gpu, ordinal);
    FIELD(cgpu_gpu, reserved0);
    FIELD(cgpu_gpu, withdrawn);
    FIELD(cgpu_gpu, context);
    FIELD(cgpu_gpu, agreed);
    FIELD(cgpu_gpu, lock);
    FIELD(cgpu_gpu, learning);
    FIELD(cgpu_gpu, reserved3);

    SIZE(cgpu_named_count);
    FIELD(cgpu_named_count, name);
    FIELD(cgpu_named_count, count);

    SIZE(cgpu_use_header);
    FIELD(cgpu_use_header, version);
    FIELD(cgpu_use_header, magic);
    FIELD(cgpu_use_header, size);
    FIELD(cgpu_use_header, gpus);
    FIELD(cgpu_use_header, high_water);
    FIELD(cgpu_use_header, created);
    FIELD(cgpu_use_header, name);
    FIELD(cgpu_use_header, time_scale);
    FIELD(cgpu_use_header, reserved0);
    FIELD(cgpu_use_header, export_table);
    FIELD(cgpu_use_header, unknown_function);
    FIELD(cgpu_use_header, reserved);
    FIELD(cgpu_use_header, gpu);

    SIZE(cgpu_slot);
    FIELD(cgpu_slot, state);
    FIELD(cgpu_slot, pid);
    FIELD(cgpu_slot, reserved0);
    FIELD(cgpu_slot, since);
    FIELD(cgpu_slot, comm);
    FIELD(cgpu_slot, acked);
    FIELD(cgpu_slot, opened_handles);
    FIELD(cgpu_slot, exported_handles);
    FIELD(cgpu_slot, counter);

    SIZE(cgpu_interval);
    FIELD(cgpu_interval, start);
    FIELD(cgpu_interval, end);

    SIZE(cgpu_cell);
    FIELD(cgpu_cell, held);
    FIELD(cgpu_cell, implicit);
    FIELD(cgpu_cell, peak);
    FIELD(cgpu_cell, limit_word);
    FIELD(cgpu_cell, waiting);
    FIELD(cgpu_cell, creating);
    FIELD(cgpu_cell, implicit_epoch);
    FIELD(cgpu_cell, charges);
    FIELD(cgpu_cell, checkpointed);
    FIELD(cgpu_cell, exported);
    FIELD(cgpu_cell, busy);
    FIELD(cgpu_cell, inflight);
    FIELD(cgpu_cell, launches);
    FIELD(cgpu_cell, active);
    FIELD(cgpu_cell, turn);
    FIELD(cgpu_cell, first);
    FIELD(cgpu_cell, last);
    FIELD(cgpu_cell, spent);
    FIELD(cgpu_cell, sequence);
    FIELD(cgpu_cell, interval);
    FIELD(cgpu_cell, ends);


    SIZE(cgpu_use);
    FIELD(cgpu_use, header);
    FIELD(cgpu_use, slot);
    FIELD(cgpu_use, cell);

    SIZE(cgpu_grant_gpu);
    FIELD(cgpu_grant_gpu, turn);
    FIELD(cgpu_grant_gpu, budget);
    FIELD(cgpu_grant_gpu, until);
    FIELD(cgpu_grant_gpu, limit);
    FIELD(cgpu_grant_gpu, notify_slot);
    FIELD(cgpu_grant_gpu, policy);
    FIELD(cgpu_grant_gpu, weight);
    FIELD(cgpu_grant_gpu, share);
    FIELD(cgpu_grant_gpu, busy);
    FIELD(cgpu_grant_gpu, beside);
    FIELD(cgpu_grant_gpu, unaccounted_epoch);
    FIELD(cgpu_grant_gpu, bound);
    FIELD(cgpu_grant_gpu, confirmed);
    FIELD(cgpu_grant_gpu, returned);
    FIELD(cgpu_grant_gpu, measured);
    FIELD(cgpu_grant_gpu, reserved0);

    SIZE(cgpu_device);
    FIELD(cgpu_device, uuid);
    FIELD(cgpu_device, total);
    FIELD(cgpu_device, free);
    FIELD(cgpu_device, order);
    FIELD(cgpu_device, reserved0);

    SIZE(cgpu_grant);
    FIELD(cgpu_grant, version);
    FIELD(cgpu_grant, magic);
    FIELD(cgpu_grant, size);
    FIELD(cgpu_grant, heartbeat);
    FIELD(cgpu_grant, monitor);
    FIELD(cgpu_grant, reserved0);
    FIELD(cgpu_grant, gate);
    FIELD(cgpu_grant, reserved1);
    FIELD(cgpu_grant, notify_requested);
    FIELD(cgpu_grant, devices);
    FIELD(cgpu_grant, sampled);
    FIELD(cgpu_grant, pid_namespace);
    FIELD(cgpu_grant, reserved2);
    FIELD(cgpu_grant, device);
    FIELD(cgpu_grant, gpu);
    FIELD(cgpu_grant, drained);
    FIELD(cgpu_grant, process);
    FIELD(cgpu_grant, unaccounted);
    return 0;
}
