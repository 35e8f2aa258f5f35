/* Vectors of RISC-V in two registers each of 256 bits or more: 16 lanes of f32. */
enum { PS_LANES = 16, PS_REGISTERS = 16 };
