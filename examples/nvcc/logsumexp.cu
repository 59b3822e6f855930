// out[row] = log(sum(exp(x[row]))) for a matrix of floats, row-major, in one pass over each row.
//
// Each thread keeps a running maximum and the sum of exponentials relative to it; the pairs of a
// warp are merged by shuffles and those of the eight warps through shared memory.
//
// Launch: grid rows, block 256, arguments (out, x, columns), columns a multiple of 4.
// Reference: torch.logsumexp(x, 1).

constexpr int WARPS = 8;

struct Part {
    float highest, sum;
};

__device__ __forceinline__ Part merge(Part left, Part right)
{
    const float highest = fmaxf(left.highest, right.highest);
    return {highest, left.sum * __expf(left.highest - highest) +
                     right.sum * __expf(right.highest - highest)};
}

__device__ __forceinline__ Part merge_warp(Part part)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        part = merge(part, {__shfl_xor_sync(~0u, part.highest, distance),
                            __shfl_xor_sync(~0u, part.sum, distance)});
    return part;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
logsumexp(float *__restrict__ out, const float *__restrict__ x, int columns)
{
    __shared__ Part parts[WARPS];
    const float4 *row = reinterpret_cast<const float4 *>(x + (size_t)blockIdx.x * columns);

    // Finite, so that the difference of two of them is never inf - inf.
    Part part = {-3.0e38f, 0.0f};
    for (int at = threadIdx.x; at < columns / 4; at += 32 * WARPS) {
        const float4 four = row[at];
        const float high = fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
        part = merge(part, {high, __expf(four.x - high) + __expf(four.y - high) +
                                  __expf(four.z - high) + __expf(four.w - high)});
    }
    part = merge_warp(part);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = part;
    __syncthreads();
    if (threadIdx.x < 32) {
        part = threadIdx.x < WARPS ? parts[threadIdx.x] : Part{-3.0e38f, 0.0f};
        part = merge_warp(part);
        if (threadIdx.x == 0) out[blockIdx.x] = part.highest + __logf(part.sum);
    }
}
