// The CUDA runtime under a limit: takes memory until the ordinary error, frees it, goes on; asks for managed memory.
// Prints one JSON object.
#include <cstdio>
#include <cuda_runtime.h>

int main() {
    const size_t chunk = 64u << 20;
    size_t free_bytes = 0, total = 0, granted = 0;
    void *block[4096], *managed = nullptr, *again = nullptr;
    int blocks = 0;
    cudaError_t error = cudaMemGetInfo(&free_bytes, &total);
    while (error == cudaSuccess && blocks < 4096 && (error = cudaMalloc(&block[blocks], chunk)) == cudaSuccess) {
        blocks++;
        granted += chunk;
    }
    while (blocks) cudaFree(block[--blocks]);
    cudaGetLastError();
    cudaError_t on = cudaMalloc(&again, chunk);
    cudaError_t managed_error = cudaMallocManaged(&managed, 1 << 20);
    printf("{\"total\": %zu, \"granted\": %zu, \"error\": %d, \"went_on\": %d, \"managed\": %d}\n", total, granted, (int)error,
           (int)on, (int)managed_error);
    return 0;
}
