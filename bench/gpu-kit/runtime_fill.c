/* SPDX-License-Identifier: Apache-2.0
 *
 * runtime_fill - the CUDA runtime under a limit: allocates until the usual error, frees, goes on,
 * and requests managed memory. Prints one JSON object. Exits 3 and says why if the runtime does not
 * start.
 *
 * It is built with and without NVIDIA's headers, so it declares what it calls.
 */
#include <stdio.h>
#include <stddef.h>

int cudaRuntimeGetVersion(int *version);
int cudaMemGetInfo(size_t *available, size_t *total);
int cudaMalloc(void **pointer, size_t bytes);
int cudaFree(void *pointer);
int cudaGetLastError(void);
int cudaMallocManaged(void **pointer, size_t bytes, unsigned flags);
const char *cudaGetErrorName(int error);

enum { CHUNKS = 4096, LACKING = 3, ATTACH_GLOBAL = 1 };

int main(void) {
    static void *chunk[CHUNKS];
    const size_t bytes = (size_t)64 << 20;
    size_t available = 0, total = 0, granted = 0;
    void *again = NULL, *managed = NULL;
    int version = 0, count = 0;

    cudaRuntimeGetVersion(&version);
    int error = cudaMemGetInfo(&available, &total);
    if (error) {
        fprintf(stderr, "cudaMemGetInfo answered %d (%s)\n", error, cudaGetErrorName(error));
        return LACKING;
    }
    while (count < CHUNKS && !(error = cudaMalloc(&chunk[count], bytes))) count++;
    granted = count * bytes;
    while (count) cudaFree(chunk[--count]);
    cudaGetLastError();
    int went_on = cudaMalloc(&again, bytes);
    int managed_error = cudaMallocManaged(&managed, 1 << 20, ATTACH_GLOBAL);
    printf("{\"version\": %d, \"total\": %zu, \"granted\": %zu, \"error\": %d, \"went_on\": %d, "
           "\"managed\": %d}\n",
           version, total, granted, error, went_on, managed_error);
    return 0;
}
