// C = A * B in single precision, n x n, row major, n a multiple of 128.
//
// A block of 256 threads makes a 128 x 128 tile of C; each thread keeps 8 x 8 of it in registers.
// Three blocks are asked to share a multiprocessor, which leaves 80 registers a thread: 64 sums,
// 16 operands and the addresses do not fit, so ptxas has to spill. That is the pressure which
// best.acf relieves and worst.acf makes worse.
//
// Launch: grid (n / 128, n / 128), block 256, arguments (C, A, B, n).
// Reference: numpy, C = A @ B.
//
// The PTX beside this file was made by nvcc 13.0 with
//     nvcc -ptx -arch=sm_90 -o sgemm.ptx sgemm.cu

constexpr int TILE = 128, DEPTH = 8, EACH = 8;

extern "C" __global__ void __launch_bounds__(256, 3)
sgemm(float *__restrict__ c, const float *__restrict__ a, const float *__restrict__ b, int n)
{
    // A is stored transposed, so that the eight rows of a thread are neighbours.
    __shared__ __align__(16) float as[2][DEPTH][TILE], bs[2][DEPTH][TILE];

    const int thread = threadIdx.x;
    const int row = (thread / 16) * EACH, column = (thread % 16) * EACH;
    const int a_row = thread / 2, a_depth = (thread % 2) * 4;
    const int b_depth = thread / 32, b_column = (thread % 32) * 4;
    const float *a_tile = a + (size_t)(blockIdx.y * TILE + a_row) * n + a_depth;
    const float *b_tile = b + (size_t)b_depth * n + blockIdx.x * TILE + b_column;

    float sum[EACH][EACH] = {};
    float4 a_next = *reinterpret_cast<const float4 *>(a_tile);
    float4 b_next = *reinterpret_cast<const float4 *>(b_tile);

    for (int k = 0, side = 0; k < n; k += DEPTH, side ^= 1) {
        as[side][a_depth + 0][a_row] = a_next.x;
        as[side][a_depth + 1][a_row] = a_next.y;
        as[side][a_depth + 2][a_row] = a_next.z;
        as[side][a_depth + 3][a_row] = a_next.w;
        *reinterpret_cast<float4 *>(&bs[side][b_depth][b_column]) = b_next;
        __syncthreads();

        // The next tiles travel from memory while this one is used.
        if (k + DEPTH < n) {
            a_next = *reinterpret_cast<const float4 *>(a_tile + k + DEPTH);
            b_next = *reinterpret_cast<const float4 *>(b_tile + (size_t)(k + DEPTH) * n);
        }

#pragma unroll
        for (int depth = 0; depth < DEPTH; depth++) {
            float left[EACH], right[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++) left[i] = as[side][depth][row + i];
#pragma unroll
            for (int j = 0; j < EACH; j++) right[j] = bs[side][depth][column + j];
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
        }
    }

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float *line = c + (size_t)(blockIdx.y * TILE + row + i) * n + blockIdx.x * TILE + column;
#pragma unroll
        for (int j = 0; j < EACH; j++) line[j] = sum[i][j];
    }
}
