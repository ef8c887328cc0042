/* The ciphers of ESP by OpenSSL: esp SUITE BYTES, where SUITE is aes-256-gcm or aes-256-ctr-hmac-sha1-96. It encrypts and
 * authenticates buffers of BYTES and does nothing else that a gateway does. It takes turns as turns.h says. With
 * OPENSSL_ia32cap=0:0 OpenSSL uses no instructions for AES, for GCM and for SHA, and no vectors. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "turns.h"
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

enum { BUFFERS = 32, LIMIT = 9600 };
static unsigned char buffers[BUFFERS][LIMIT], key[32] = {1}, nonce[16] = {3}, check[32];
static EVP_CIPHER_CTX *cipher;
static HMAC_CTX *mac;
static int bytes, is_gcm;

static int seal(unsigned char *text)
{
    int out;
    unsigned len;
    if (!EVP_EncryptInit_ex(cipher, 0, 0, 0, nonce))
        return 0;
    if (is_gcm)
        return EVP_EncryptUpdate(cipher, 0, &out, key, 8) && EVP_EncryptUpdate(cipher, text, &out, text, bytes) &&
               EVP_EncryptFinal_ex(cipher, text + out, &out) &&
               EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_GCM_GET_TAG, 16, check);
    /* Header and initialisation vector are authenticated as well. */
    return EVP_EncryptUpdate(cipher, text, &out, text, bytes) && HMAC_Init_ex(mac, 0, 0, 0, 0) &&
           HMAC_Update(mac, key, 16) && HMAC_Update(mac, text, bytes) && HMAC_Final(mac, check, &len);
}

static unsigned long burst(void)
{
    for (int buffer = 0; buffer < BUFFERS; buffer++)
        if (!seal(buffers[buffer]))
            return 0;
    return BUFFERS;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    is_gcm = !strcmp(argv[1], "aes-256-gcm");
    bytes = atoi(argv[2]);
    cipher = EVP_CIPHER_CTX_new();
    mac = HMAC_CTX_new();
    if (bytes < 1 || bytes > LIMIT || !cipher || !mac || !HMAC_Init_ex(mac, key, 20, EVP_sha1(), 0) ||
        !EVP_EncryptInit_ex(cipher, is_gcm ? EVP_aes_256_gcm() : EVP_aes_256_ctr(), 0, key, nonce))
        return 1;
    return take_turns(burst);
}
