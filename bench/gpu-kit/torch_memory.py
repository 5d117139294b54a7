"""PyTorch under a limit: the GPU's size, out of memory, recovery. Prints one JSON object."""

import json

import torch

free, total = torch.cuda.mem_get_info()
properties = torch.cuda.get_device_properties(0).total_memory
blocks, out_of_memory = [], False
try:
    while True:
        blocks.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError:
    out_of_memory = True
most = torch.cuda.memory_reserved()
del blocks
torch.cuda.empty_cache()
after = torch.ones(1 << 20, device="cuda").sum().item()
result = {
    "total": total,
    "properties": properties,
    "free": free,
    "most": most,
    "out_of_memory": out_of_memory,
    "went_on": after == float(1 << 20),
    "torch": torch.__version__,
}
print(json.dumps(result))
