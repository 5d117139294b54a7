"""A small training loop, deterministic. Prints one JSON object: losses and the time of a step."""

import json
import time

import torch

torch.manual_seed(7)
torch.use_deterministic_algorithms(True, warn_only=True)
layers = torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(256, 512, device="cuda")
losses, steps = [], 400
for step in range(steps + 50):
    if step == 50:
        torch.cuda.synchronize()
        start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    loss = torch.nn.functional.mse_loss(model(data), data)
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        losses.append(loss.item())
torch.cuda.synchronize()
print(json.dumps({"step_ms": (time.perf_counter() - start) * 1000 / steps, "losses": losses}))
