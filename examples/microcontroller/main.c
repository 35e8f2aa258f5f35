/* Two layers on static buffers: no heap, no threads, no files; printf only to report. */
#include "net.h"

#include <stdalign.h>
#include <stdio.h>

enum { SIDE = 8, IN = 8, MID = 16, OUT = 8 };

/* The constants of net.h are in bytes; a workspace may need none, and an array has one at least. */
#define FLOATS(BYTES) ((BYTES) / sizeof(float))
#define LARGER(A, B) ((A) > (B) ? (A) : (B))
#define WORKSPACE_SIZE LARGER(net_conv1_WORKSPACE_SIZE, net_conv2_WORKSPACE_SIZE)

static float image[FLOATS(net_conv1_X_SIZE)], middle[FLOATS(net_conv1_Y_SIZE)];
static float result[FLOATS(net_conv2_Y_SIZE)];
static float weights1[FLOATS(net_conv1_W_SIZE)], weights2[FLOATS(net_conv2_W_SIZE)];
static alignas(64) float packed1[FLOATS(net_conv1_PACKED_SIZE)];
static alignas(64) float packed2[FLOATS(net_conv2_PACKED_SIZE)];
static alignas(64) float workspace[FLOATS(WORKSPACE_SIZE) + 1];

_Static_assert(sizeof image == sizeof(float[SIDE][SIDE][IN]), "x of conv1");
_Static_assert(net_conv1_Y_SIZE == net_conv2_X_SIZE, "conv2 reads what conv1 writes");

/* Small integers, so that sums are exact in any order. */
static void fill(float *values, int count, int seed)
{
    for (int i = 0; i < count; i++)
        values[i] = (float)((i * 7 + seed) % 5 - 2);
}

static float pixel(int h, int w, int c)
{
    return h < 0 || h >= SIDE || w < 0 || w >= SIDE ? 0 : image[(h * SIDE + w) * IN + c];
}

/* conv1 with ReLU by plain loops, at one position. */
static float expected1(int p, int q, int k)
{
    float sum = 0;
    for (int r = 0; r < 3; r++)
        for (int s = 0; s < 3; s++)
            for (int c = 0; c < IN; c++)
                sum += pixel(p + r - 1, q + s - 1, c) * weights1[((k * IN + c) * 3 + r) * 3 + s];
    return sum > 0 ? sum : 0;
}

static float expected2(int p, int q, int k)
{
    float sum = 0;
    for (int c = 0; c < MID; c++)
        sum += expected1(p, q, c) * weights2[k * MID + c];
    return sum;
}

int main(void)
{
    const float relu[2] = {0, 3e38f};
    int wrong = 0;
    fill(image, SIDE * SIDE * IN, 1);
    fill(weights1, MID * IN * 3 * 3, 2);
    fill(weights2, OUT * MID, 3);
    net_conv1_pack_weights(weights1, packed1);
    net_conv2_pack_weights(weights2, packed2);

    if (net_conv1(image, packed1, middle, 0, 0, relu, workspace) != NET_OK ||
        net_conv2(middle, packed2, result, 0, 0, 0, workspace) != NET_OK)
        return 1;

    for (int p = 0; p < SIDE; p++)
        for (int q = 0; q < SIDE; q++)
            for (int k = 0; k < OUT; k++)
                wrong += result[(p * SIDE + q) * OUT + k] != expected2(p, q, k);
    printf("packed weights: %d and %d bytes, workspace: %d bytes\n", (int)sizeof packed1,
           (int)sizeof packed2, (int)WORKSPACE_SIZE);
    printf("%d of %d results are wrong\n", wrong, SIDE * SIDE * OUT);
    return wrong != 0;
}
