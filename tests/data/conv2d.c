/* ResNet's stem in two groups: every kind of subscript and guard that a convolution needs. */
#include <stdint.h>

#define N 1
#define G 2

float O[N][16][112][112];
static const float I[N][8][224][224], W[16][4][7][7];

void conv2d(void) {
#pragma scop
  for (int64_t n = 0; n < N; ++n)
    for (int64_t g = 0; g < G; ++g)
      for (int64_t k = 0; k < 8; ++k)
        for (int64_t p = 0; p < 112; ++p)
          for (int64_t q = 0; q < 112; ++q)
            for (int64_t c = 0; c < 4; ++c)
              for (int64_t r = 0; r < 7; ++r)
                for (int64_t s = 0; s < 7; ++s)
                  if (p * 2 + r * 1 - 3 >= 0 && p * 2 + r - 3 < 224 && q * 2 + s - 3 >= 0 &&
                      q * 2 + s - 3 < 224)
                    O[n][g * 8 + k][p][q] = O[n][g * 8 + k][p][q] +
                        I[n][g * 4 + c][p * 2 + r - 3][q * 2 + s - 3] * W[g * 8 + k][c][r][s];
#pragma endscop
}
