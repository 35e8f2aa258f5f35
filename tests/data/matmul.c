// Two statements, one of them outside the innermost loop.
#define I 300
#define J 100
#define K (200)

void matmul(float C[I][J], const float A[I][K], const float B[K][J]) {
  int i, j, k;
#pragma scop
  for (i = 0; i < I; i++)
    for (j = 0; j < J; j++) {
      C[i][j] = 0;
#pragma omp simd
      for (k = 0; k < K; k++)
        C[i][j] += A[i][k] * B[k][j];
    }
#pragma endscop
}
