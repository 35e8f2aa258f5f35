/* Vectors of RISC-V in two registers each of 128 bits or more: 8 lanes of f32. */
enum { PS_LANES = 8, PS_REGISTERS = 16 };
