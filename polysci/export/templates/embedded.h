
/* The same with the weights that are a part of the library. */
@NAME@_model *@NAME@_load_embedded(@?DEVICE@@NAME@_device *device, @/DEVICE@const char **why);
